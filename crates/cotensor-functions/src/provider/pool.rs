//! Threads that run functions. What has to wait for anything else is not here: it would occupy one.

use super::flight::Flight;
use super::shared::Shared;
use cotensor_core::sync::lock;
use cotensor_core::{Error, ErrorKind, Result};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

pub(super) struct Pool {
    queue: Mutex<Queue>,
    more: Condvar,
    waiting_max: usize,
    running_max: usize,
}

#[derive(Default)]
struct Queue {
    ready: VecDeque<Arc<Flight>>,
    /// Ready, or waiting for the turn of a function.
    waiting: usize,
    /// On whatever threads.
    running: usize,
    closed: bool,
}

/// Whose turn it is at a function that runs one call at a time.
#[derive(Default)]
pub(super) struct Turn {
    busy: bool,
    waiting: VecDeque<Arc<Flight>>,
}

impl Pool {
    pub(super) fn new(running_max: usize, waiting_max: usize) -> Self {
        Self { queue: Mutex::default(), more: Condvar::new(), waiting_max, running_max }
    }

    /// Whether the caller may run something on its own thread now; if so, it says when it is done by [`end`](Self::end).
    pub(super) fn begin(&self) -> bool {
        let mut queue = lock(&self.queue);
        let free = !queue.closed && queue.ready.is_empty() && queue.running < self.running_max;
        queue.running += usize::from(free);
        free
    }

    /// Something that ran is done.
    pub(super) fn end(&self) {
        let mut queue = lock(&self.queue);
        queue.running -= 1;
        let more = !queue.ready.is_empty();
        drop(queue);
        if more {
            self.more.notify_one();
        }
    }

    /// Lines a run up.
    ///
    /// # Errors
    /// `Conflict` when too many wait, or when the provider has ended.
    pub(super) fn submit(&self, flight: &Arc<Flight>) -> Result<()> {
        if !self.has_room()? {
            self.clear_out(flight);
        }
        {
            let mut queue = lock(&self.queue);
            if queue.waiting >= self.waiting_max {
                let message = format!("{} calls wait at this provider; try again later", queue.waiting);
                return Err(Error::new(ErrorKind::Conflict, message));
            }
            queue.waiting += 1;
        }
        if let Some(turn) = turn(flight) {
            let mut turn = lock(turn);
            if turn.busy {
                turn.waiting.push_back(Arc::clone(flight));
                return Ok(());
            }
            turn.busy = true;
        }
        self.ready(Arc::clone(flight));
        Ok(())
    }

    fn has_room(&self) -> Result<bool> {
        let queue = lock(&self.queue);
        match queue.closed {
            true => Err(Error::new(ErrorKind::Conflict, "the provider has ended")),
            false => Ok(queue.waiting < self.waiting_max),
        }
    }

    /// Drops runs that nobody waits for any more, of those that `flight` would wait behind.
    fn clear_out(&self, flight: &Flight) {
        let mut gone = Vec::new();
        let mut keep = |flight: &Arc<Flight>, wanted: bool| {
            if !wanted {
                gone.push(Arc::clone(flight));
            }
            wanted
        };
        if let Some(turn) = turn(flight) {
            lock(turn).waiting.retain(|waiting| keep(waiting, !waiting.is_over()));
        }
        let mut queue = lock(&self.queue);
        // One that has a function's turn stays, to pass it on.
        queue.ready.retain(|ready| keep(ready, turn(ready).is_some() || !ready.is_over()));
        queue.waiting -= gone.len();
        drop(queue);
        drop(gone);
    }

    fn ready(&self, flight: Arc<Flight>) {
        lock(&self.queue).ready.push_back(flight);
        self.more.notify_one();
    }

    /// The next run; `None` when the provider has ended.
    fn next(&self) -> Option<Arc<Flight>> {
        let mut queue = lock(&self.queue);
        loop {
            if queue.closed {
                return None;
            }
            if queue.running < self.running_max
                && let Some(flight) = queue.ready.pop_front()
            {
                queue.waiting -= 1;
                queue.running += 1;
                return Some(flight);
            }
            queue = self.more.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Passes a function's turn on.
    pub(super) fn pass_on(&self, flight: &Flight) {
        if let Some(turn) = turn(flight) {
            let mut turn = lock(turn);
            match turn.waiting.pop_front() {
                Some(next) => self.ready(next),
                None => turn.busy = false,
            }
        }
    }

    /// Ends the workers, each after what it runs.
    pub(super) fn close(&self) {
        let mut queue = lock(&self.queue);
        queue.closed = true;
        let ready = std::mem::take(&mut queue.ready);
        drop(queue);
        drop(ready);
        self.more.notify_all();
    }
}

pub(super) fn turn(flight: &Flight) -> Option<&Mutex<Turn>> {
    flight.function.as_ref().and_then(|function| function.turn.as_ref())
}

/// A worker's life.
pub(super) fn work(shared: &Arc<Shared>) {
    while let Some(flight) = shared.pool.next() {
        shared.run(&flight, || {});
        shared.pool.pass_on(&flight);
        shared.pool.end();
    }
}
