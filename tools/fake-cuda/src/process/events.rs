//! Events: places in the work of streams.

use crate::codes::{INVALID_HANDLE, Outcome};
use std::collections::HashMap;

/// Where an event was recorded last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recorded {
    Never,
    /// After so many items of a stream's work.
    After {
        stream: u64,
        position: u64,
    },
    /// In a capture, by the stream that has begun it.
    Captured {
        stream: u64,
        first: u64,
    },
}

/// The events of a process.
#[derive(Default)]
pub(super) struct Events {
    events: HashMap<u64, Recorded>,
}

impl Events {
    pub(super) fn add(&mut self, event: u64) {
        self.events.insert(event, Recorded::Never);
    }

    pub(super) fn record(&mut self, event: u64, recorded: Recorded) -> Outcome {
        *self.events.get_mut(&event).ok_or(INVALID_HANDLE)? = recorded;
        Ok(())
    }

    pub(super) fn get(&self, event: u64) -> Outcome<Recorded> {
        self.events.get(&event).copied().ok_or(INVALID_HANDLE)
    }

    pub(super) fn remove(&mut self, event: u64) -> Outcome {
        self.events.remove(&event).map(drop).ok_or(INVALID_HANDLE)
    }
}
