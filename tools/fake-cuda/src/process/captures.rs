//! Captures of streams into graphs, and the calls that they prohibit. Graphs themselves do not exist here.

use crate::codes::{CAPTURE_INVALIDATED, CAPTURE_UNSUPPORTED, ILLEGAL_STATE, INVALID_VALUE, Outcome};
use std::cell::Cell;
use std::collections::HashMap;
use std::thread::ThreadId;

/// `CU_STREAM_CAPTURE_MODE_GLOBAL`, which each thread has at first.
const GLOBAL: i32 = 0;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: i32 = 2;

thread_local! {
    static MODE: Cell<i32> = const { Cell::new(GLOBAL) };
}

/// Sets the mode of this thread. Returns the former one.
pub(crate) fn exchange_mode(mode: i32) -> Outcome<i32> {
    check_mode(mode)?;
    Ok(MODE.replace(mode))
}

fn check_mode(mode: i32) -> Outcome {
    if (GLOBAL..=RELAXED).contains(&mode) { Ok(()) } else { Err(INVALID_VALUE) }
}

struct Capture {
    mode: i32,
    thread: ThreadId,
    is_valid: bool,
}

/// The captured streams of a process.
#[derive(Default)]
pub(crate) struct Captures {
    captures: HashMap<u64, Capture>,
}

impl Captures {
    /// Captures the work of a stream from now on.
    pub(super) fn begin(&mut self, stream: u64, mode: i32) -> Outcome {
        check_mode(mode)?;
        if self.captures.contains_key(&stream) {
            return Err(ILLEGAL_STATE);
        }
        self.captures.insert(stream, Capture { mode, thread: std::thread::current().id(), is_valid: true });
        Ok(())
    }

    /// Ends a capture, with an error if a prohibited call has made it invalid.
    pub(super) fn end(&mut self, stream: u64) -> Outcome {
        let capture = self.captures.remove(&stream).ok_or(ILLEGAL_STATE)?;
        if capture.is_valid { Ok(()) } else { Err(CAPTURE_INVALIDATED) }
    }

    /// Enters a call that waits for these streams, which no captured one may be.
    pub(super) fn check_wait(&mut self, streams: &[u64]) -> Outcome {
        self.invalidate(|stream, _| streams.contains(&stream))
    }

    /// Enters a call that captures of other streams prohibit, unless the mode of this thread is relaxed. The driver's documentation calls
    /// it potentially unsafe, and does not list such calls; here, all calls that give work to a device or wait for it are.
    pub(super) fn check_unsafe(&mut self) -> Outcome {
        let (mode, thread) = (MODE.get(), std::thread::current().id());
        self.invalidate(|_, capture| match (mode, capture.thread == thread) {
            (RELAXED, _) => false,
            (_, true) => capture.mode != RELAXED,
            (_, false) => mode == GLOBAL && capture.mode == GLOBAL,
        })
    }

    fn invalidate(&mut self, concerns: impl Fn(u64, &Capture) -> bool) -> Outcome {
        let mut done = Ok(());
        for (stream, capture) in &mut self.captures {
            if concerns(*stream, capture) {
                capture.is_valid = false;
                done = Err(CAPTURE_UNSUPPORTED);
            }
        }
        done
    }
}
