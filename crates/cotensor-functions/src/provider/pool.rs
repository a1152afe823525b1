//! The queue of runs that wait for a worker. Runs that wait for a serialized function are not in it: they occupy no worker.

use super::flight::{Flight, SerialQueue};
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
    /// Runs that are ready or wait for a serialized function.
    waiting: usize,
    /// Runs on all threads.
    running: usize,
    closed: bool,
}

impl Pool {
    pub(super) fn new(running_max: usize, waiting_max: usize) -> Self {
        Self { queue: Mutex::default(), more: Condvar::new(), waiting_max, running_max }
    }

    /// Takes a worker's place for the calling thread, if one is free. The thread releases it by [`end`](Self::end).
    pub(super) fn begin(&self) -> bool {
        let mut queue = lock(&self.queue);
        let free = !queue.closed && queue.ready.is_empty() && queue.running < self.running_max;
        queue.running += usize::from(free);
        free
    }

    /// Releases the place of a run that has ended.
    pub(super) fn end(&self) {
        let mut queue = lock(&self.queue);
        queue.running -= 1;
        let more = !queue.ready.is_empty();
        drop(queue);
        if more {
            self.more.notify_one();
        }
    }

    /// Queues a run.
    ///
    /// # Errors
    /// `Conflict` when too many runs wait, or the provider has ended.
    pub(super) fn submit(&self, flight: &Arc<Flight>) -> Result<()> {
        if !self.has_room()? {
            self.clear_out(flight);
        }
        {
            let mut queue = lock(&self.queue);
            if queue.waiting >= self.waiting_max {
                let message = format!("{} calls wait for this provider; try again later", queue.waiting);
                return Err(Error::new(ErrorKind::Conflict, message));
            }
            queue.waiting += 1;
        }
        if let Some(queue) = serial_queue(flight) {
            let mut queue = lock(queue);
            if queue.busy {
                queue.waiting.push_back(Arc::clone(flight));
                return Ok(());
            }
            queue.busy = true;
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

    /// Drops cancelled runs from the queues that `flight` would wait in.
    fn clear_out(&self, flight: &Flight) {
        let mut gone = Vec::new();
        let mut keep = |flight: &Arc<Flight>, wanted: bool| {
            if !wanted {
                gone.push(Arc::clone(flight));
            }
            wanted
        };
        if let Some(queue) = serial_queue(flight) {
            lock(queue).waiting.retain(|waiting| keep(waiting, !waiting.is_over()));
        }
        let mut queue = lock(&self.queue);
        // A cancelled run of a serialized function stays: its end starts the next run.
        queue.ready.retain(|ready| keep(ready, serial_queue(ready).is_some() || !ready.is_over()));
        queue.waiting -= gone.len();
        drop(queue);
        drop(gone);
    }

    fn ready(&self, flight: Arc<Flight>) {
        lock(&self.queue).ready.push_back(flight);
        self.more.notify_one();
    }

    /// Waits for the next run. `None` when the provider has ended.
    pub(super) fn next(&self) -> Option<Arc<Flight>> {
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

    /// Makes the next run of a serialized function ready after `flight` has ended.
    pub(super) fn next_in_series(&self, flight: &Flight) {
        if let Some(queue) = serial_queue(flight) {
            let mut queue = lock(queue);
            match queue.waiting.pop_front() {
                Some(next) => self.ready(next),
                None => queue.busy = false,
            }
        }
    }

    /// Ends the workers after their current runs.
    pub(super) fn close(&self) {
        let mut queue = lock(&self.queue);
        queue.closed = true;
        let ready = std::mem::take(&mut queue.ready);
        drop(queue);
        drop(ready);
        self.more.notify_all();
    }
}

/// The queue of the run's function, if the function is serialized.
pub(super) fn serial_queue(flight: &Flight) -> Option<&Mutex<SerialQueue>> {
    flight.options.serial.as_deref()
}
