//! A descriptor for event loops, which cannot wait for a word in memory.

use super::reader::ReadEnd;
use cotensor_core::{Error, Result};
use cotensor_memory::process::fd_error;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long the thread waits before it looks whether the reader still exists.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// An event descriptor, and the thread that signals it. The thread ends with the reader.
pub(super) struct Ready {
    event: Arc<OwnedFd>,
}

impl Ready {
    /// Signals for frames after number `last`.
    pub(super) fn start(end: &Arc<ReadEnd>, last: u64) -> Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let event = Arc::new(event.map_err(|error| fd_error("making an event descriptor", error))?);
        let (end, signalled) = (Arc::downgrade(end), Arc::downgrade(&event));
        let thread = std::thread::Builder::new().name("channel".to_owned()).stack_size(128 << 10);
        let run = move || follow(&end, &signalled, last);
        drop(thread.spawn(run).map_err(|error| Error::io("starting a thread", &error))?);
        Ok(Self { event })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

fn follow(end: &Weak<ReadEnd>, event: &Weak<OwnedFd>, mut last: u64) {
    while let (Some(end), Some(event)) = (end.upgrade(), event.upgrade()) {
        let (is_open, newest) = (matches!(end.is_open(), Ok(true)), end.ring.newest());
        if newest > last || !is_open {
            last = newest;
            // It fails only for a counter that is full, which is readable.
            let _ = rustix::io::write(&*event, &1u64.to_ne_bytes());
        }
        if !is_open {
            return;
        }
        drop(event);
        if end.ring.wait(last, CHECK_INTERVAL).is_err() {
            return;
        }
    }
}
