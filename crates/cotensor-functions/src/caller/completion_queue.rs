//! `CompletionQueue`: one thread waits for many calls and tasks of one provider.

use super::provider_connection::{self, MessageRanges, ProviderConnection};
use super::task::Task;
use crate::allocator::TensorAllocator;
use crate::call_limit::CallLimit;
use crate::codec::SentTensors;
use crate::failure::{CallError, Failure};
use crate::scope::Scope;
use crate::value::{Arguments, Value};
use cotensor_client::protocol::Method;
use cotensor_client::protocol::provider as p;
use cotensor_core::Result;
use cotensor_core::sync::lock;
use cotensor_core::waiting::{REPORT_AFTER, WaitClock};
use cotensor_rpc::Deadline;
use cotensor_rpc::{CallGroup, WaitLimit};
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How often the oldest request is searched for a report.
const REPORT_INTERVAL: Duration = Duration::from_millis(500);

/// Waits for calls and tasks of one provider. The user chooses a number for each.
pub struct CompletionQueue {
    connection: Arc<ProviderConnection>,
    group: Arc<CallGroup>,
    pending: Mutex<Pending>,
    /// Of the oldest request, while that waits for a long time.
    clock: Mutex<Option<WaitClock>>,
}

/// The calls and tasks without a result.
#[derive(Default)]
struct Pending {
    /// By the numbers of the requests.
    entries: HashMap<u64, PendingEntry>,
    /// The numbers of the requests, by the user's numbers.
    requests: HashMap<u64, u64>,
}

impl Pending {
    fn insert(&mut self, id: u64, entry: PendingEntry) {
        self.requests.insert(entry.number, id);
        self.entries.insert(id, entry);
    }

    fn remove(&mut self, id: u64) -> Option<PendingEntry> {
        let entry = self.entries.remove(&id)?;
        self.requests.remove(&entry.number);
        Some(entry)
    }

    /// Removes the entries that `end` selects.
    fn take_where(&mut self, end: impl Fn(&PendingEntry) -> bool) -> Vec<(u64, PendingEntry)> {
        let ids: Vec<u64> = self.entries.iter().filter(|(_, entry)| end(entry)).map(|(id, _)| *id).collect();
        ids.into_iter().filter_map(|id| Some((id, self.remove(id)?))).collect()
    }
}

/// A call or a task without a result.
struct PendingEntry {
    number: u64,
    /// The awaited event in reports.
    what: String,
    since: Instant,
    kind: PendingKind,
    deadline: Deadline,
    /// Of the run that made the call.
    scope: Option<Arc<Scope>>,
}

enum PendingKind {
    /// The arguments' tensors stay leased until the answer arrives: the provider may lease them any time before.
    Call {
        _arguments: Arguments,
        _sent: SentTensors,
    },
    Task,
}

/// The outcome of a call or a task.
pub enum Completion {
    /// The result of a call.
    Call(Result<Value, CallError>),
    /// The state of a task that has ended, or whose wait timed out.
    Task(Result<p::TaskInfo, CallError>),
}

impl CompletionQueue {
    pub(super) fn new(connection: Arc<ProviderConnection>) -> Self {
        Self { connection, group: Arc::default(), pending: Mutex::default(), clock: Mutex::default() }
    }

    /// The epoch of the provider.
    pub fn epoch(&self) -> u64 {
        self.connection.epoch()
    }

    /// The number of calls and tasks that [`wait`](Self::wait) has not returned.
    pub fn count(&self) -> usize {
        lock(&self.pending).entries.len()
    }

    /// Whether the provider has ended.
    pub fn is_closed(&self) -> bool {
        self.connection.is_closed()
    }

    /// Calls a function as [`Functions::call_within`](super::Functions::call_within), without waiting.
    /// [`wait`](Self::wait) returns the outcome under `number`.
    ///
    /// # Errors
    /// When the call cannot be sent.
    pub fn call(
        &self,
        number: u64,
        name: &str,
        arguments: Arguments,
        timeout: Option<Duration>,
    ) -> Result<(), CallError> {
        let limit = CallLimit::of_call(timeout.into(), None)?;
        let (params, sent) = self.connection.params(name, &arguments, &limit)?;
        // Locked until the entry exists: the answer may arrive before.
        let mut pending = lock(&self.pending);
        let ranges = MessageRanges { sent: Some(&sent), released: &params.released };
        let id = self.connection.request_into::<p::Call>(&params, ranges, &limit.deadline, &self.group)?;
        let kind = PendingKind::Call { _arguments: arguments, _sent: sent };
        pending.insert(id, PendingEntry::new(number, format!("to run {name}"), kind, &limit));
        Ok(())
    }

    /// Allocates tensors of arguments.
    pub fn allocator(&self) -> TensorAllocator {
        self.connection.allocator()
    }

    /// Adds a task of this provider. [`wait`](Self::wait) returns its state under `number` when it has ended or after
    /// `timeout`.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn add_task(&self, number: u64, task: &Task, timeout: Option<Duration>) -> Result<(), CallError> {
        let limit = CallLimit::of_call(Deadline::from(timeout).for_state(), None)?;
        let (params, ranges) =
            (p::WaitParams { task: task.number(), timeout_ms: limit.deadline.left_ms() }, MessageRanges::default());
        let mut pending = lock(&self.pending);
        let id = self.connection.request_into::<p::Wait>(&params, ranges, &limit.deadline, &self.group)?;
        let what = format!("to end the task {}", task.number());
        pending.insert(id, PendingEntry::new(number, what, PendingKind::Task, &limit));
        Ok(())
    }

    /// Cancels the call `number`, or ends the wait for the task `number`. [`wait`](Self::wait) does not return it.
    pub fn cancel(&self, number: u64) {
        let mut pending = lock(&self.pending);
        let cancelled = pending.requests.get(&number).copied().and_then(|id| Some((id, pending.remove(id)?)));
        drop(pending);
        if let Some((id, entry)) = cancelled {
            self.abandon(id, &entry);
            self.connection.cancel(id);
        }
    }

    /// Waits until at least one call or task completes or times out, while `wanted` returns true. Returns the completed
    /// ones with their numbers. After the provider has ended, returns all others as failed.
    pub fn wait(&self, wanted: &dyn Fn() -> bool) -> Vec<(u64, Completion)> {
        let pending = lock(&self.pending);
        let deadline = pending.entries.values().filter_map(|entry| entry.deadline.wait_limit(None).deadline).min();
        drop(pending);
        let checked = Cell::new(Instant::now());
        let keep_waiting = || {
            if checked.get().elapsed() >= REPORT_INTERVAL {
                checked.set(Instant::now());
                self.check_report();
            }
            wanted() && !lock(&self.pending).entries.values().any(|entry| entry.is_cancelled())
        };
        let limit = WaitLimit { deadline, keep_waiting: Some(&keep_waiting), waiting: None };
        let answers = match self.connection.wait_for(&self.group, &limit) {
            Ok(answers) => answers,
            Err(error) => {
                let lost = std::mem::take(&mut *lock(&self.pending));
                return lost.entries.into_values().map(|entry| entry.failed(error.clone())).collect();
            }
        };
        let mut completed = Vec::with_capacity(answers.len());
        for (id, answer) in answers {
            let Some(PendingEntry { number, kind, deadline, .. }) = lock(&self.pending).remove(id) else {
                // The answer arrived just after the deadline, or after the call was cancelled.
                self.connection.dispose_result(answer);
                continue;
            };
            let with_provider = |error| provider_connection::with_provider(&deadline, error, self.connection.client());
            completed.push((
                number,
                match kind {
                    PendingKind::Call { .. } => {
                        let result = ProviderConnection::decode_answer::<p::Call>(answer).map_err(with_provider);
                        Completion::Call(result.and_then(|result| self.connection.open(result)))
                    }
                    PendingKind::Task => {
                        let info = ProviderConnection::decode_answer::<p::Wait>(answer);
                        Completion::Task(info.map_err(with_provider))
                    }
                },
            ));
        }
        completed.extend(self.timed_out());
        completed.extend(self.cancelled());
        completed
    }

    /// Reports the wait for the oldest request if that is due.
    fn check_report(&self) {
        let pending = lock(&self.pending);
        let oldest =
            pending.entries.values().min_by_key(|entry| entry.since).map(|entry| (entry.since, entry.what.clone()));
        drop(pending);
        let mut clock = lock(&self.clock);
        match oldest.filter(|(since, _)| since.elapsed() >= REPORT_AFTER) {
            Some((since, what)) => {
                let clock = clock.get_or_insert_with(|| WaitClock::since(since));
                clock.check(|| self.connection.describe(&what));
            }
            None => *clock = None,
        }
    }

    /// Removes the entries that timed out, and abandons their requests.
    fn timed_out(&self) -> Vec<(u64, Completion)> {
        let late = lock(&self.pending).take_where(|entry| entry.deadline.wait_limit(None).has_passed());
        let mut completed = Vec::with_capacity(late.len());
        for (id, entry) in late {
            self.abandon(id, &entry);
            let error = entry.deadline.timeout_error(self.connection.client(), p::Call::NAME);
            completed.push(entry.failed(error));
        }
        completed
    }

    /// Removes the entries of functions that were cancelled, and cancels their requests.
    fn cancelled(&self) -> Vec<(u64, Completion)> {
        let cancelled = lock(&self.pending).take_where(|entry| entry.is_cancelled());
        let mut completed = Vec::with_capacity(cancelled.len());
        for (id, entry) in cancelled {
            self.abandon(id, &entry);
            self.connection.cancel(id);
            completed.push(entry.failed(CallError::Failed(Failure::cancelled())));
        }
        completed
    }

    /// Abandons the request of an entry.
    fn abandon(&self, id: u64, entry: &PendingEntry) {
        let is_call = matches!(entry.kind, PendingKind::Call { .. });
        self.connection.abandon(id, if is_call { ProviderConnection::dispose_result } else { |_, _| {} });
    }
}

impl PendingEntry {
    fn new(number: u64, what: String, kind: PendingKind, limit: &CallLimit<'_>) -> Self {
        let (deadline, scope) = (limit.deadline, limit.scope.clone());
        Self { number, what, since: Instant::now(), kind, deadline, scope }
    }

    /// Whether the run that made the call was cancelled.
    fn is_cancelled(&self) -> bool {
        self.scope.as_ref().is_some_and(|scope| scope.is_cancelled())
    }

    fn failed(self, error: impl Into<CallError>) -> (u64, Completion) {
        let error = error.into();
        let completion = match self.kind {
            PendingKind::Call { .. } => Completion::Call(Err(error)),
            PendingKind::Task => Completion::Task(Err(error)),
        };
        (self.number, completion)
    }
}
