//! The queue of runs that are ready to start. Runs that wait for a serialized function are not in it: they occupy no
//! thread.

use super::run::{Run, SerialQueue};
use cotensor_core::sync::lock;
use cotensor_core::{Error, ErrorKind, Result};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

pub(super) struct RunQueue {
    queue: Mutex<Queue>,
    waiting_max: usize,
    running_max: usize,
}

#[derive(Default)]
struct Queue {
    ready: VecDeque<Arc<Run>>,
    /// Runs that are ready or wait for a serialized function.
    waiting: usize,
    /// Runs on all threads.
    running: usize,
    closed: bool,
}

impl RunQueue {
    pub(super) fn new(running_max: usize, waiting_max: usize) -> Self {
        Self { queue: Mutex::default(), waiting_max, running_max }
    }

    /// Queues a run. The calling thread takes it with [`take`](Self::take), or wakes a thread that does.
    ///
    /// # Errors
    /// `Conflict` when too many runs wait, or the provider has ended.
    pub(super) fn push(&self, run: &Arc<Run>) -> Result<()> {
        if !self.has_room()? {
            self.remove_cancelled(run);
        }
        {
            let mut queue = lock(&self.queue);
            if !self.fits(&queue) {
                let message = format!("{} calls wait for this provider; try again later", queue.waiting);
                return Err(Error::new(ErrorKind::Conflict, message));
            }
            queue.waiting += 1;
        }
        if let Some(serial) = serial_queue(run) {
            let mut serial = lock(serial);
            if serial.busy {
                serial.waiting.push_back(Arc::clone(run));
                return Ok(());
            }
            serial.busy = true;
        }
        lock(&self.queue).ready.push_back(Arc::clone(run));
        Ok(())
    }

    fn has_room(&self) -> Result<bool> {
        let queue = lock(&self.queue);
        match queue.closed {
            true => Err(Error::new(ErrorKind::Conflict, "the provider has ended")),
            false => Ok(self.fits(&queue)),
        }
    }

    /// Whether one more run may wait. Runs that can start at once do not count.
    fn fits(&self, queue: &Queue) -> bool {
        let can_start = self.running_max.saturating_sub(queue.running);
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
        queue.ready.retain(|ready| keep(ready, serial_queue(ready).is_some() || !ready.is_over()));
        queue.waiting -= removed.len();
        drop(queue);
        drop(removed);
    }

    /// Takes the next run, if a run is ready and the limit of concurrent runs allows it. Call [`finish`](Self::finish)
    /// after the run. Also returns whether another thread can take a run now.
    pub(super) fn take(&self) -> Option<(Arc<Run>, bool)> {
        let mut queue = lock(&self.queue);
        if queue.closed || queue.running >= self.running_max {
            return None;
        }
        let run = queue.ready.pop_front()?;
        queue.waiting -= 1;
        queue.running += 1;
        let more = !queue.ready.is_empty() && queue.running < self.running_max;
        Some((run, more))
    }

    /// Whether a thread can take a run now.
    pub(super) fn has_ready(&self) -> bool {
        let queue = lock(&self.queue);
        !queue.closed && !queue.ready.is_empty() && queue.running < self.running_max
    }

    /// Ends a run that was [taken](Self::take). The next run of a serialized function becomes ready.
    pub(super) fn finish(&self, run: &Run) {
        let next = serial_queue(run).and_then(|serial| {
            let mut serial = lock(serial);
            let next = serial.waiting.pop_front();
            serial.busy = next.is_some();
            next
        });
        let mut queue = lock(&self.queue);
        queue.running -= 1;
        queue.ready.extend(next);
    }

    /// Drops all runs that have not started.
    pub(super) fn close(&self) {
        let mut queue = lock(&self.queue);
        queue.closed = true;
        let ready = std::mem::take(&mut queue.ready);
        drop(queue);
        drop(ready);
    }
}

/// The queue of the run's function, if the function is serialized.
fn serial_queue(run: &Run) -> Option<&Mutex<SerialQueue>> {
    run.options.serial.as_deref()
}
