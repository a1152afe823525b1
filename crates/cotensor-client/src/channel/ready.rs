//! A descriptor for event loops, which cannot wait for a word in memory.

use super::read_end::{CheckInterval, ReadEnd};
use cotensor_core::sync::lock;
use cotensor_core::{Error, Result};
use cotensor_memory::process::fd_error;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// An event descriptor, and the thread that signals it. The thread ends when the channel ends and when the reader is left.
pub(super) struct Ready {
    event: Arc<OwnedFd>,
    thread: Mutex<Option<JoinHandle<()>>>,
    owner: u32,
}

impl Ready {
    /// Signals for frames after number `last`.
    pub(super) fn start(end: &Arc<ReadEnd>, last: u64) -> Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let event = Arc::new(event.map_err(|error| fd_error("making an event descriptor", error))?);
        let (end, signalled) = (Arc::clone(end), Arc::clone(&event));
        let thread = std::thread::Builder::new().name("channel".to_owned()).stack_size(128 << 10);
        let run = move || follow(&end, &signalled, last);
        let thread = thread.spawn(run).map_err(|error| Error::io("starting a thread", &error))?;
        Ok(Self { event, thread: Mutex::new(Some(thread)), owner: std::process::id() })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Waits for the end of the thread, after the reader was left: it has the reader's page.
    pub(super) fn join(&self) {
        // A forked child has no such thread.
        if self.owner == std::process::id()
            && let Some(thread) = lock(&self.thread).take()
        {
            let _ = thread.join();
        }
    }
}

fn follow(end: &ReadEnd, event: &OwnedFd, mut last: u64) {
    let mut interval = CheckInterval::default();
    loop {
        let seen = end.ring.signal();
        let is_open = !end.ring.is_left() && matches!(end.is_open(), Ok(true));
        let newest = end.ring.newest();
        if newest > last || !is_open {
            last = newest;
            // It fails only for a counter that is full, which is readable.
            let _ = rustix::io::write(event, &1u64.to_ne_bytes());
        }
        if !is_open || interval.wait(&end.ring, seen, Duration::MAX).is_err() {
            return;
        }
    }
}
