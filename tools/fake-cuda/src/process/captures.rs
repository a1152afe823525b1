//! Captures of streams into graphs, and the calls that they prohibit. Graphs themselves do not exist here: captured work is dropped.

use crate::codes::{
    CAPTURE_INVALIDATED, CAPTURE_UNJOINED, CAPTURE_UNMATCHED, CAPTURE_UNSUPPORTED, ILLEGAL_STATE, INVALID_VALUE,
    Outcome,
};
use std::cell::Cell;
use std::collections::HashMap;

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

/// The thread's number. `std::thread` would register code of this library for the end of the thread, which tests outlive.
fn this_thread() -> libc::pid_t {
    // SAFETY: the call has no arguments.
    unsafe { libc::gettid() }
}

struct Capture {
    mode: i32,
    /// The thread that has begun it.
    thread: libc::pid_t,
    is_valid: bool,
    /// Streams that wait for an event of the capture, and so are a part of it: whether the first stream waits for them, too.
    members: HashMap<u64, bool>,
}

/// The captures of a process, by the streams that have begun them.
#[derive(Default)]
pub(crate) struct Captures {
    captures: HashMap<u64, Capture>,
}

impl Captures {
    /// Captures the work of a stream from now on.
    pub(super) fn begin(&mut self, stream: u64, mode: i32) -> Outcome {
        check_mode(mode)?;
        if self.of(stream).is_some() {
            return Err(ILLEGAL_STATE);
        }
        let (thread, members) = (this_thread(), HashMap::from([(stream, true)]));
        self.captures.insert(stream, Capture { mode, thread, is_valid: true, members });
        Ok(())
    }

    /// Ends a capture, with an error if a prohibited call has made it invalid, or if the first stream does not wait for another one.
    pub(super) fn end(&mut self, stream: u64) -> Outcome {
        let capture = match self.captures.remove(&stream) {
            Some(capture) => capture,
            None if self.of(stream).is_some() => return Err(CAPTURE_UNMATCHED),
            None => return Err(ILLEGAL_STATE),
        };
        match capture {
            Capture { is_valid: false, .. } => Err(CAPTURE_INVALIDATED),
            Capture { members, .. } if members.values().any(|is_joined| !is_joined) => Err(CAPTURE_UNJOINED),
            _ => Ok(()),
        }
    }

    /// The stream that has begun the capture of `stream`.
    pub(super) fn of(&self, stream: u64) -> Option<u64> {
        self.captures.iter().find(|(_, capture)| capture.members.contains_key(&stream)).map(|(first, _)| *first)
    }

    /// The driver's number for the state of a stream: none, active or invalid.
    pub(super) fn status(&self, stream: u64) -> i32 {
        let capture = self.of(stream).and_then(|first| self.captures.get(&first));
        capture.map_or(0, |capture| if capture.is_valid { 1 } else { 2 })
    }

    /// Lets `stream` wait for an event of `recorded`, a stream of the capture that `first` has begun.
    pub(super) fn join(&mut self, stream: u64, recorded: u64, first: u64) -> Outcome {
        let of_stream = self.of(stream);
        let capture = self.captures.get_mut(&first).ok_or(ILLEGAL_STATE)?;
        match of_stream {
            None => {
                capture.members.insert(stream, false);
            }
            Some(own) if own == first => {
                capture.members.insert(recorded, true);
            }
            Some(_) => {
                capture.is_valid = false;
                return Err(CAPTURE_UNSUPPORTED);
            }
        }
        Ok(())
    }

    /// Enters a call that waits for these streams, which no captured one may be.
    pub(super) fn check_wait(&mut self, streams: &[u64]) -> Outcome {
        self.invalidate(|capture| capture.members.keys().any(|member| streams.contains(member)))
    }

    /// Enters a call that captures of other streams prohibit, unless the mode of this thread is relaxed. The driver's documentation calls
    /// it potentially unsafe, and does not list such calls; here, all calls that give work to a device, wait for it, or change memory are.
    pub(crate) fn check_unsafe(&mut self) -> Outcome {
        let (mode, thread) = (MODE.get(), this_thread());
        self.invalidate(|capture| match (mode, capture.thread == thread) {
            (RELAXED, _) => false,
            (_, true) => capture.mode != RELAXED,
            (_, false) => mode == GLOBAL && capture.mode == GLOBAL,
        })
    }

    fn invalidate(&mut self, concerns: impl Fn(&Capture) -> bool) -> Outcome {
        let mut done = Ok(());
        for capture in self.captures.values_mut() {
            if concerns(capture) {
                capture.is_valid = false;
                done = Err(CAPTURE_UNSUPPORTED);
            }
        }
        done
    }
}
