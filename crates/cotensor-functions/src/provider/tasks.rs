//! The table of tasks: calls that a client submits, and whose results it gets later. A task outlives the client's
//! connection.

use super::run::{Outcome, Run};
use super::timer::TimeLimit;
use crate::Failure;
use cotensor_client::protocol::provider::{ListTasksParams, TaskInfo, TaskList, TaskState};
use cotensor_core::sync::lock;
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_store::Clock;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The maximum number of tasks in one list.
const LIST_MAX: usize = 10_000;

/// The maximum length of an error in a task's state, in bytes. The task's result has the whole error.
const ERROR_BYTES_MAX: usize = 512;

/// Called with the state of a task that has ended.
pub(super) type Waiter = Box<dyn FnOnce(Result<TaskInfo>) + Send>;

pub(super) struct Tasks {
    clock: Arc<dyn Clock>,
    ttl: Duration,
    max: usize,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    next: u64,
    tasks: BTreeMap<u64, Task>,
    /// The ended tasks in the order of their ends, with the times.
    ended: VecDeque<(Duration, u64)>,
}

struct Task {
    function: Arc<str>,
    client: Arc<str>,
    submitted: Duration,
    /// The run and the number of the task's watcher, until the task ends.
    run: Option<(Arc<Run>, u64)>,
    limit: Option<TimeLimit>,
    outcome: Option<Outcome>,
    next_waiter: u64,
    waiters: Vec<WaitingRequest>,
}

struct WaitingRequest {
    number: u64,
    waiter: Waiter,
    limit: Option<TimeLimit>,
}

impl Task {
    fn info(&self, task: u64, now: Duration) -> TaskInfo {
        let running = self.run.as_ref().is_some_and(|(run, _)| run.is_started());
        let (state, error) = match &self.outcome {
            None if running => (TaskState::Running, None),
            None => (TaskState::Pending, None),
            Some(Ok(_)) => (TaskState::Completed, None),
            Some(Err(failure)) if failure.is_cancellation() => (TaskState::Cancelled, None),
            Some(Err(failure)) => {
                // Truncated before it is copied: `list` formats many tasks under the lock.
                let message = &failure.message[..failure.message.floor_char_boundary(ERROR_BYTES_MAX)];
                (TaskState::Failed, Some(format!("{}: {message}", failure.kind)))
            }
        };
        let age_ms = u64::try_from(now.saturating_sub(self.submitted).as_millis()).unwrap_or(u64::MAX);
        let (function, client) = (self.function.to_string(), self.client.to_string());
        TaskInfo { task, function, state, client, age_ms, error }
    }
}

impl Tasks {
    pub(super) fn new(clock: Arc<dyn Clock>, ttl: Duration, max: usize) -> Self {
        Self { clock, ttl, max, table: Mutex::default() }
    }

    /// Adds a task without a run. Returns its number.
    ///
    /// # Errors
    /// `Conflict` when too many tasks have not ended.
    pub(super) fn add(&self, function: &Arc<str>, client: &Arc<str>) -> Result<u64> {
        self.sweep();
        let submitted = self.clock.now();
        let mut table = lock(&self.table);
        let mut removed = None;
        if table.tasks.len() >= self.max {
            let oldest = table.ended.pop_front();
            let (_, oldest) = oldest.ok_or_else(|| {
                Error::new(ErrorKind::Conflict, format!("{} tasks have not ended; try again later", self.max))
            })?;
            removed = table.tasks.remove(&oldest);
        }
        table.next += 1;
        let number = table.next;
        let (function, client) = (Arc::clone(function), Arc::clone(client));
        let (run, limit, outcome, waiters) = (None, None, None, Vec::new());
        let task = Task { function, client, submitted, run, limit, outcome, next_waiter: 0, waiters };
        table.tasks.insert(number, task);
        drop(table);
        drop(removed);
        Ok(number)
    }

    /// Removes a task whose run could not be queued.
    pub(super) fn discard(&self, number: u64) {
        let removed = lock(&self.table).tasks.remove(&number);
        drop(removed);
    }

    /// Sets the run of a task, the number of the task's watcher, and the time limit of the task.
    pub(super) fn attach(&self, number: u64, run: &Arc<Run>, watcher: u64, limit: Option<TimeLimit>) {
        let mut table = lock(&self.table);
        let unused = match table.tasks.get_mut(&number) {
            Some(task) if task.outcome.is_none() => {
                task.run = Some((Arc::clone(run), watcher));
                task.limit = limit;
                None
            }
            _ => Some(limit),
        };
        drop(table);
        if unused.is_some() {
            // The task has ended meanwhile.
            run.leave(watcher);
        }
    }

    /// Ends a task, unless it has ended, and calls its waiters.
    pub(super) fn end(&self, number: u64, outcome: Outcome) {
        let now = self.clock.now();
        let mut table = lock(&self.table);
        let Table { tasks, ended, .. } = &mut *table;
        let Some(task) = tasks.get_mut(&number).filter(|task| task.outcome.is_none()) else { return };
        task.outcome = Some(outcome);
        ended.push_back((now, number));
        let (run, limit) = (task.run.take(), task.limit.take());
        let (waiters, info) = (std::mem::take(&mut task.waiters), task.info(number, now));
        drop(table);
        drop(limit);
        if let Some((run, watcher)) = run {
            run.leave(watcher);
        }
        for WaitingRequest { waiter, limit, .. } in waiters {
            drop(limit);
            waiter(Ok(info.clone()));
        }
    }

    /// The task's state.
    ///
    /// # Errors
    /// `NotFound` for a task that does not exist or was removed.
    pub(super) fn info(&self, number: u64) -> Result<TaskInfo> {
        self.with_task(number, |task, now| task.info(number, now))
    }

    /// The task's outcome.
    ///
    /// # Errors
    /// `NotFound` as [`info`](Self::info); `Conflict` while it has not ended.
    pub(super) fn outcome(&self, number: u64) -> Result<Outcome> {
        let outcome = self.with_task(number, |task, now| task.outcome.clone().ok_or_else(|| task.info(number, now)))?;
        outcome.map_err(|info| {
            Error::new(ErrorKind::Conflict, format!("task {number} is {}; wait for its end", info.state.name()))
        })
    }

    fn with_task<T>(&self, number: u64, act: impl FnOnce(&mut Task, Duration) -> T) -> Result<T> {
        self.sweep();
        let now = self.clock.now();
        let missing = || {
            Error::not_found(format!("task {number} does not exist, or was removed after its time to live"))
                .in_field("task")
        };
        Ok(act(lock(&self.table).tasks.get_mut(&number).ok_or_else(missing)?, now))
    }

    /// Calls `waiter` when the task ends, or at once when it has ended or does not exist. Returns the number of a
    /// waiter that waits.
    pub(super) fn add_waiter(&self, number: u64, waiter: Waiter) -> Option<u64> {
        let mut waiter = Some(waiter);
        let added = self.with_task(number, |task, now| {
            if task.outcome.is_some() {
                return Err(task.info(number, now));
            }
            task.next_waiter += 1;
            let number = task.next_waiter;
            task.waiters.extend(waiter.take().map(|waiter| WaitingRequest { number, waiter, limit: None }));
            Ok(number)
        });
        let info = match added {
            Ok(Ok(waiter)) => return Some(waiter),
            Ok(Err(info)) => Ok(info),
            Err(error) => Err(error),
        };
        if let Some(waiter) = waiter {
            waiter(info);
        }
        None
    }

    /// Removes a waiter, and returns it with the task's state.
    pub(super) fn remove_waiter(&self, number: u64, waiter: u64) -> Option<(Waiter, TaskInfo)> {
        let now = self.clock.now();
        let mut table = lock(&self.table);
        let task = table.tasks.get_mut(&number)?;
        let at = task.waiters.iter().position(|waiting| waiting.number == waiter)?;
        let WaitingRequest { waiter, .. } = task.waiters.remove(at);
        Some((waiter, task.info(number, now)))
    }

    /// Whether a waiter still waits.
    pub(super) fn is_waiting(&self, number: u64, waiter: u64) -> bool {
        let table = lock(&self.table);
        let waiters = table.tasks.get(&number).map(|task| &task.waiters);
        waiters.is_some_and(|waiters| waiters.iter().any(|waiting| waiting.number == waiter))
    }

    /// Sets the time limit of a waiter. It is cancelled when the waiter is removed.
    pub(super) fn set_waiter_limit(&self, number: u64, waiter: u64, limit: TimeLimit) {
        let mut table = lock(&self.table);
        let waiters = table.tasks.get_mut(&number).map(|task| &mut task.waiters);
        let waiting = waiters.and_then(|waiters| waiters.iter_mut().find(|waiting| waiting.number == waiter));
        let unused = match waiting {
            Some(waiting) => waiting.limit.replace(limit),
            None => Some(limit),
        };
        drop(table);
        drop(unused);
    }

    /// Cancels a task that has not ended.
    ///
    /// # Errors
    /// `NotFound` as [`info`](Self::info).
    pub(super) fn cancel(&self, number: u64) -> Result<TaskInfo> {
        self.info(number)?;
        self.end(number, Err(Failure::cancelled()));
        self.info(number)
    }

    /// Cancels all tasks that have not ended.
    pub(super) fn close(&self) {
        let numbers: Vec<u64> = lock(&self.table).tasks.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.end(number, Err(Failure::cancelled())));
    }

    pub(super) fn list(&self, params: &ListTasksParams) -> TaskList {
        self.sweep();
        let now = self.clock.now();
        let (mut tasks, mut left_off) = (Vec::new(), 0);
        for (&number, task) in lock(&self.table).tasks.iter().rev() {
            let info = task.info(number, now);
            match params.state.is_none_or(|wanted| wanted == info.state) {
                true if tasks.len() < params.limit.min(LIST_MAX) => tasks.push(info),
                true => left_off += 1,
                false => {}
            }
        }
        TaskList { tasks, left_off }
    }

    /// Removes the ended tasks whose time to live has passed.
    pub(super) fn sweep(&self) {
        let now = self.clock.now();
        let mut removed = Vec::new();
        let mut table = lock(&self.table);
        while let Some(&(ended, number)) = table.ended.front()
            && now.saturating_sub(ended) >= self.ttl
        {
            table.ended.pop_front();
            removed.push(table.tasks.remove(&number));
        }
        drop(table);
        drop(removed);
    }
}
