//! The queue of runs that are ready to start. Runs that wait for a serialized function are not in it: they occupy no
//! thread.
//!
//! A *nested* run is one that another run of this provider waits for. Nested runs start before others, and in addition to
//! the workers' runs if all workers are busy: the worker of the waiting run is free only after the nested run.

use super::run::{Run, SerialQueue};
use cotensor_core::sync::lock;
use cotensor_core::{Error, ErrorKind, Result};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// The most nested runs in addition to the workers' runs: those of one chain of calls always fit.
const EXTRA_MAX: usize = 128;

pub(super) struct RunQueue {
    queue: Mutex<Queue>,
    waiting_max: usize,
    running_max: usize,
}

#[derive(Default)]
struct Queue {
    ready: VecDeque<Arc<Run>>,
    /// Nested runs that are ready.
    nested: VecDeque<Arc<Run>>,
    /// Runs that are ready or wait for a serialized function.
    waiting: usize,
    /// The workers' runs.
    running: usize,
    /// Nested runs in addition to the workers' runs.
    extra: usize,
    closed: bool,
}

impl Queue {
    fn add(&mut self, run: Arc<Run>) {
        if run.scope.is_nested() { self.nested.push_back(run) } else { self.ready.push_back(run) }
    }
}

impl RunQueue {
    pub(super) fn new(running_max: usize, waiting_max: usize) -> Self {
        Self { queue: Mutex::default(), waiting_max, running_max }
    }

    /// Queues a run. The calling thread takes it with [`take`](Self::take), or wakes a thread that does.
    ///
    /// # Errors
    /// `Conflict` when too many runs wait, or the provider has ended, and for a call of a serialized function by its own run.
    pub(super) fn push(&self, run: &Arc<Run>) -> Result<()> {
        if let Some(serial) = serial_queue(run)
            && let Some(running) = lock(serial).running
            && run.scope.is_awaited_by(running)
        {
            let message = format!("{} runs once at a time, and its run waits for this call", run.name);
            return Err(Error::new(ErrorKind::Conflict, message));
        }
        if !self.has_room(run)? {
            self.remove_cancelled(run);
        }
        {
            let mut queue = lock(&self.queue);
            if !self.fits(&queue, run) {
                let message = format!("{} calls wait for this provider; try again later", queue.waiting);
                return Err(Error::new(ErrorKind::Conflict, message));
            }
            queue.waiting += 1;
        }
        if let Some(serial) = serial_queue(run) {
            let mut serial = lock(serial);
            if serial.running.is_some() {
                serial.waiting.push_back(Arc::clone(run));
                return Ok(());
            }
            serial.running = Some(run.scope.run());
        }
        lock(&self.queue).add(Arc::clone(run));
        Ok(())
    }

    fn has_room(&self, run: &Run) -> Result<bool> {
        let queue = lock(&self.queue);
        if queue.closed {
            Err(Error::new(ErrorKind::Conflict, "the provider has ended"))
        } else {
            Ok(self.fits(&queue, run))
        }
    }

    /// Whether one more run may wait. Runs that can start at once do not count.
    fn fits(&self, queue: &Queue, run: &Run) -> bool {
        let extra = if run.scope.is_nested() { EXTRA_MAX - queue.extra } else { 0 };
        let can_start = self.running_max.saturating_sub(queue.running) + extra;
        queue.waiting < self.waiting_max.saturating_add(can_start)
    }

    /// Drops cancelled runs from the queues that `run` would wait in.
    fn remove_cancelled(&self, run: &Run) {
        let mut removed = Vec::new();
        let mut keep = |run: &Arc<Run>, wanted: bool| {
            if !wanted {
                removed.push(Arc::clone(run));
            }
            wanted
        };
        if let Some(serial) = serial_queue(run) {
            lock(serial).waiting.retain(|waiting| keep(waiting, !waiting.is_over()));
        }
        let mut queue = lock(&self.queue);
        // A cancelled run of a serialized function stays: its end starts the next run.
        let mut is_wanted = |ready: &Arc<Run>| keep(ready, serial_queue(ready).is_some() || !ready.is_over());
        queue.ready.retain(&mut is_wanted);
        queue.nested.retain(&mut is_wanted);
        queue.waiting -= removed.len();
        drop(queue);
        drop(removed);
    }

    /// Takes the next run, if a run is ready and the limit of concurrent runs allows it. Call [`finish`](Self::finish)
    /// after the run. Also returns whether another thread can take a run now.
    pub(super) fn take(&self) -> Option<(Arc<Run>, bool)> {
        let mut queue = lock(&self.queue);
        if !self.can_take(&queue) {
            return None;
        }
        let run = match queue.nested.pop_front() {
            Some(nested) => nested,
            None => queue.ready.pop_front()?,
        };
        queue.waiting -= 1;
        if queue.running < self.running_max {
            queue.running += 1;
        } else {
            queue.extra += 1;
            run.is_extra.store(true, Ordering::Relaxed);
        }
        let more = self.can_take(&queue);
        Some((run, more))
    }

    /// Whether a thread can take a run now.
    pub(super) fn has_ready(&self) -> bool {
        self.can_take(&lock(&self.queue))
    }

    fn can_take(&self, queue: &Queue) -> bool {
        let has_worker = queue.running < self.running_max;
        let has_nested = !queue.nested.is_empty() && (has_worker || queue.extra < EXTRA_MAX);
        !queue.closed && (has_nested || has_worker && !queue.ready.is_empty())
    }

    /// Ends a run that was [taken](Self::take). The next run of a serialized function becomes ready.
    pub(super) fn finish(&self, run: &Run) {
        let next = serial_queue(run).and_then(|serial| {
            let mut serial = lock(serial);
            let next = serial.waiting.pop_front();
            serial.running = next.as_ref().map(|run| run.scope.run());
            next
        });
        let mut queue = lock(&self.queue);
        if run.is_extra.load(Ordering::Relaxed) {
            queue.extra -= 1
        } else {
            queue.running -= 1
        }
        if let Some(next) = next {
            queue.add(next);
        }
    }

    /// Drops all runs that have not started.
    pub(super) fn close(&self) {
        let mut queue = lock(&self.queue);
        queue.closed = true;
        let dropped = (std::mem::take(&mut queue.ready), std::mem::take(&mut queue.nested));
        drop(queue);
        drop(dropped);
    }
}

/// The queue of the run's function, if the function is serialized.
fn serial_queue(run: &Run) -> Option<&Mutex<SerialQueue>> {
    run.options.serial.as_deref()
}
