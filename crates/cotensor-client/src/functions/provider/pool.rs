//! Threads that run functions. What has to wait for anything else is not here: it would occupy one.

use super::flight::Flight;
use super::{Shared, lock};
use cotensor_core::{Error, ErrorKind, Result};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

pub(super) struct Pool {
    queue: Mutex<Queue>,
    more: Condvar,
    waiting_max: usize,
}

#[derive(Default)]
struct Queue {
    ready: VecDeque<Arc<Flight>>,
    /// Ready, or waiting for the turn of a function.
    waiting: usize,
    closed: bool,
}

impl Queue {
    /// Drops runs that nobody waits for any more. One that has a function's turn stays, to pass it on.
    fn clear_out(&mut self) {
        let before = self.ready.len();
        self.ready.retain(|flight| turn(flight).is_some() || !flight.is_over());
        self.waiting -= before - self.ready.len();
    }
}

/// Whose turn it is at a function that runs one call at a time.
#[derive(Default)]
pub(super) struct Turn {
    busy: bool,
    waiting: VecDeque<Arc<Flight>>,
}

impl Pool {
    pub(super) fn new(waiting_max: usize) -> Self {
        Self { queue: Mutex::default(), more: Condvar::new(), waiting_max }
    }

    /// Lines a run up.
    ///
    /// # Errors
    /// `Conflict` when too many wait, or when the provider has ended.
    pub(super) fn submit(&self, flight: &Arc<Flight>) -> Result<()> {
        {
            let mut queue = lock(&self.queue);
            if queue.closed {
                return Err(Error::new(ErrorKind::Conflict, "the provider has ended"));
            }
            if queue.waiting >= self.waiting_max {
                queue.clear_out();
            }
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
            if let Some(flight) = queue.ready.pop_front() {
                queue.waiting -= 1;
                return Some(flight);
            }
            queue = self.more.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Passes a function's turn on.
    fn pass_on(&self, flight: &Flight) {
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

fn turn(flight: &Flight) -> Option<&Mutex<Turn>> {
    flight.function.as_ref().and_then(|function| function.turn.as_ref())
}

/// A worker's life.
pub(super) fn work(shared: &Arc<Shared>) {
    while let Some(flight) = shared.pool.next() {
        if let Some(work) = flight.start() {
            let limit = shared.limit_run(&flight);
            let outcome = flight.run(work);
            drop(limit);
            shared.landed(&flight, outcome);
        } else {
            shared.forget_flight(&flight);
        }
        shared.pool.pass_on(&flight);
    }
}
