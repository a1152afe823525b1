//! Tasks: runs that are asked about later. They end with their time, not with who submitted them.

use super::flight::{Flight, Outcome};
use super::timer::Limit;
use crate::Failure;
use cotensor_client::protocol::provider::{ListTasksParams, TaskInfo, TaskList, TaskState};
use cotensor_core::sync::lock;
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_store::Clock;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The most tasks of one list.
const LIST_MAX: usize = 10_000;

/// The most bytes of an error's message that a task's description has; its result has all of it.
const ERROR_BYTES_MAX: usize = 512;

/// Who waits for a task's end.
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
    /// Those that have ended, in that order, and when.
    ended: VecDeque<(Duration, u64)>,
}

struct Task {
    function: Arc<str>,
    client: Arc<str>,
    submitted: Duration,
    /// The run, and the number under which the task watches it, until it ends.
    flight: Option<(Arc<Flight>, u64)>,
    limit: Option<Limit>,
    outcome: Option<Outcome>,
    next_waiter: u64,
    waiters: Vec<Waiting>,
}

struct Waiting {
    number: u64,
    waiter: Waiter,
    limit: Option<Limit>,
}

impl Task {
    fn info(&self, task: u64, now: Duration) -> TaskInfo {
        let running = self.flight.as_ref().is_some_and(|(flight, _)| flight.is_started());
        let (state, error) = match &self.outcome {
            None if running => (TaskState::Running, None),
            None => (TaskState::Pending, None),
            Some(Ok(_)) => (TaskState::Completed, None),
            Some(Err(failure)) if failure.is_cancellation() => (TaskState::Cancelled, None),
            Some(Err(failure)) => {
                // Cut before it is copied: a list of many is made under the lock.
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

    /// A number for a new task, whose run is about to begin.
    ///
    /// # Errors
    /// `Conflict` when there are too many that have not ended.
    pub(super) fn add(&self, function: &Arc<str>, client: &Arc<str>) -> Result<u64> {
        self.sweep();
        let submitted = self.clock.now();
        let mut table = lock(&self.table);
        let mut gone = None;
        if table.tasks.len() >= self.max {
            let oldest = table.ended.pop_front();
            let (_, oldest) = oldest.ok_or_else(|| {
                Error::new(ErrorKind::Conflict, format!("{} tasks have not ended; try again later", self.max))
            })?;
            gone = table.tasks.remove(&oldest);
        }
        table.next += 1;
        let number = table.next;
        let (function, client) = (Arc::clone(function), Arc::clone(client));
        let (flight, limit, outcome, waiters) = (None, None, None, Vec::new());
        table
            .tasks
            .insert(number, Task { function, client, submitted, flight, limit, outcome, next_waiter: 0, waiters });
        drop(table);
        drop(gone);
        Ok(number)
    }

    /// Forgets a task whose run could not begin.
    pub(super) fn discard(&self, number: u64) {
        let gone = lock(&self.table).tasks.remove(&number);
        drop(gone);
    }

    /// The task's run, which it watches under `watch`, and its time limit.
    pub(super) fn attach(&self, number: u64, flight: &Arc<Flight>, watch: u64, limit: Option<Limit>) {
        let mut table = lock(&self.table);
        let surplus = match table.tasks.get_mut(&number) {
            Some(task) if task.outcome.is_none() => {
                task.flight = Some((Arc::clone(flight), watch));
                task.limit = limit;
                None
            }
            _ => Some(limit),
        };
        drop(table);
        if surplus.is_some() {
            // It has ended meanwhile, and does not wait for its run.
            flight.leave(watch);
        }
    }

    /// Ends a task, unless it has ended; tells those who wait.
    pub(super) fn end(&self, number: u64, outcome: Outcome) {
        let now = self.clock.now();
        let mut table = lock(&self.table);
        let Table { tasks, ended, .. } = &mut *table;
        let Some(task) = tasks.get_mut(&number).filter(|task| task.outcome.is_none()) else { return };
        task.outcome = Some(outcome);
        ended.push_back((now, number));
        let (flight, limit) = (task.flight.take(), task.limit.take());
        let (waiters, info) = (std::mem::take(&mut task.waiters), task.info(number, now));
        drop(table);
        drop(limit);
        if let Some((flight, watch)) = flight {
            flight.leave(watch);
        }
        for Waiting { waiter, limit, .. } in waiters {
            drop(limit);
            waiter(Ok(info.clone()));
        }
    }

    /// # Errors
    /// `NotFound` for a task that never was or is kept no longer.
    pub(super) fn info(&self, number: u64) -> Result<TaskInfo> {
        self.look(number, |task, now| task.info(number, now))
    }

    /// The task's outcome.
    ///
    /// # Errors
    /// `NotFound` as [`info`](Self::info); `Conflict` while it has not ended.
    pub(super) fn outcome(&self, number: u64) -> Result<Outcome> {
        let outcome = self.look(number, |task, now| task.outcome.clone().ok_or_else(|| task.info(number, now)))?;
        outcome.map_err(|info| {
            Error::new(ErrorKind::Conflict, format!("task {number} is {}; wait for its end", info.state.name()))
        })
    }

    fn look<T>(&self, number: u64, look: impl FnOnce(&mut Task, Duration) -> T) -> Result<T> {
        self.sweep();
        let now = self.clock.now();
        let missing = || Error::not_found(format!("there is no task {number} (any more)")).in_field("task");
        Ok(look(lock(&self.table).tasks.get_mut(&number).ok_or_else(missing)?, now))
    }

    /// Tells `waiter` when the task has ended, or at once that it has or that there is no such task. Its number, to take it
    /// back by, while it waits.
    pub(super) fn wait(&self, number: u64, waiter: Waiter) -> Option<u64> {
        let mut waiter = Some(waiter);
        let looked = self.look(number, |task, now| {
            if task.outcome.is_some() {
                return Err(task.info(number, now));
            }
            task.next_waiter += 1;
            let number = task.next_waiter;
            task.waiters.extend(waiter.take().map(|waiter| Waiting { number, waiter, limit: None }));
            Ok(task.next_waiter)
        });
        let told = match looked {
            Ok(Ok(waiting)) => return Some(waiting),
            Ok(Err(info)) => Ok(info),
            Err(error) => Err(error),
        };
        if let Some(waiter) = waiter {
            waiter(told);
        }
        None
    }

    /// Takes a waiter back, with what there is to tell it.
    pub(super) fn stop_waiting(&self, number: u64, waiter: u64) -> Option<(Waiter, TaskInfo)> {
        let now = self.clock.now();
        let mut table = lock(&self.table);
        let task = table.tasks.get_mut(&number)?;
        let at = task.waiters.iter().position(|waiting| waiting.number == waiter)?;
        let Waiting { waiter, .. } = task.waiters.remove(at);
        Some((waiter, task.info(number, now)))
    }

    /// The time limit of a waiter goes when the waiter does.
    pub(super) fn keep_limit(&self, number: u64, waiter: u64, limit: Limit) {
        let mut table = lock(&self.table);
        let waiters = table.tasks.get_mut(&number).map(|task| &mut task.waiters);
        let waiting = waiters.and_then(|waiters| waiters.iter_mut().find(|waiting| waiting.number == waiter));
        let surplus = match waiting {
            Some(waiting) => waiting.limit.replace(limit),
            None => Some(limit),
        };
        drop(table);
        drop(surplus);
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

    /// Cancels all that has not ended: the provider does.
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

    /// Forgets what has ended long enough ago.
    pub(super) fn sweep(&self) {
        let now = self.clock.now();
        let mut gone = Vec::new();
        let mut table = lock(&self.table);
        while let Some(&(ended, number)) = table.ended.front()
            && now.saturating_sub(ended) >= self.ttl
        {
            table.ended.pop_front();
            gone.push(table.tasks.remove(&number));
        }
        drop(table);
        drop(gone);
    }
}
