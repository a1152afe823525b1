//! Calls that are answered together, in one message.

use crate::frame::{FRAME_BYTES_MAX, FRAME_FDS_MAX, Frame};
use crate::message::{BATCH_MAX, Response, TENSORS_INSTEAD, to_object};
use cotensor_core::sync::{lock, wait_timeout};
use cotensor_core::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Bytes that are left in a batch's answer for each call, so that every call has room for an error.
const ERROR_BYTES_MAX: usize = 1024;
/// The bytes of all results in a batch's answer.
const RESULTS_BYTES_MAX: usize = FRAME_BYTES_MAX - BATCH_MAX * ERROR_BYTES_MAX;
/// The time between two checks whether a peer that waits for a batch permit is still connected.
const CONNECTED_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Runs once the server knows whether the caller gets a result.
pub(super) type Settle = Box<dyn FnOnce(bool) + Send>;

/// The answers to a batch.
pub(super) struct Batch {
    answers: Mutex<Answers>,
    _permit: Option<BatchPermit>,
}

struct Answers {
    /// Calls that have no answer yet.
    open: usize,
    /// A JSON list without its closing bracket.
    body: Vec<u8>,
    fds: Vec<OwnedFd>,
    /// Whether a result was left out for lack of room.
    full: bool,
    /// Those of the results in the body.
    settles: Vec<Settle>,
}

impl Drop for Answers {
    /// The batch ends without its message.
    fn drop(&mut self) {
        self.settles.drain(..).for_each(|settle| settle(false));
    }
}

/// What one answer changes.
pub(super) struct Finished {
    /// The code of the error that took the answer's place, if one did.
    pub(super) error_code: Option<i32>,
    /// The batch's message, after its last answer.
    pub(super) message: Option<Frame>,
    /// Those of the results in the message.
    pub(super) settles: Vec<Settle>,
    /// That of this answer, if its result is not in the message.
    pub(super) left_out: Option<Settle>,
}

impl Batch {
    pub(super) fn new(calls: usize, permit: Option<BatchPermit>) -> Arc<Self> {
        let answers = Answers { open: calls, body: Vec::new(), fds: Vec::new(), full: false, settles: Vec::new() };
        Arc::new(Self { answers: Mutex::new(answers), _permit: permit })
    }

    /// Whether a result was left out for lack of room. Further calls of the batch do not run.
    pub(super) fn is_full(&self) -> bool {
        lock(&self.answers).full
    }

    /// The error of a call that does not run because the batch is full.
    pub(super) fn full() -> Error {
        Error::unsupported(format!("the answers before this one fill the message: ask for less, or {TENSORS_INSTEAD}"))
    }

    /// Adds the answer to one call; none for a notification.
    pub(super) fn finish(&self, response: Option<Response>, fds: Vec<OwnedFd>, settle: Option<Settle>) -> Finished {
        let mut answers = lock(&self.answers);
        answers.open = answers.open.saturating_sub(1);
        let is_notification = response.is_none();
        let error_code = response.and_then(|response| answers.add(&response, fds));
        let (inside, left_out) = if is_notification || error_code.is_some() { (None, settle) } else { (settle, None) };
        answers.settles.extend(inside);
        let complete = answers.open == 0 && !answers.body.is_empty();
        let message = complete.then(|| {
            answers.body.push(b']');
            Frame { body: std::mem::take(&mut answers.body), fds: std::mem::take(&mut answers.fds) }
        });
        let settles = if complete { std::mem::take(&mut answers.settles) } else { Vec::new() };
        Finished { error_code, message, settles, left_out }
    }
}

impl Answers {
    /// The code of the error that took the answer's place, if one did.
    fn add(&mut self, response: &Response, mut fds: Vec<OwnedFd>) -> Option<i32> {
        let left = RESULTS_BYTES_MAX.saturating_sub(self.body.len()).max(ERROR_BYTES_MAX);
        let added = if self.fds.len() + fds.len() > FRAME_FDS_MAX {
            Err(Error::invalid("more descriptors than one message carries: call one by one"))
        } else {
            response.to_bytes(left)
        };
        let (answer, error_code) = match added {
            Ok(answer) => {
                self.fds.append(&mut fds);
                (answer, None)
            }
            Err(error) => {
                // An answer that is too long for any message says nothing about the room that is left.
                self.full |= error.kind() == ErrorKind::Unsupported && response.to_bytes(RESULTS_BYTES_MAX).is_ok();
                let error = to_object(&error);
                let code = error.code();
                (response.with_error(error), Some(code))
            }
        };
        self.body.push(if self.body.is_empty() { b'[' } else { b',' });
        self.body.extend_from_slice(&answer);
        error_code
    }
}

/// A limit of the batches of one peer that have no answer yet.
pub struct BatchPermits(Arc<PermitCount>);

struct PermitCount {
    free: Mutex<usize>,
    freed: Condvar,
}

impl BatchPermits {
    /// `count` batches at a time.
    pub fn new(count: usize) -> Self {
        Self(Arc::new(PermitCount { free: Mutex::new(count), freed: Condvar::new() }))
    }

    /// Waits for a free permit.
    ///
    /// # Errors
    /// `Io` when the peer at the other end of `socket` closes the connection meanwhile.
    pub fn acquire(&self, socket: &UnixStream) -> Result<BatchPermit> {
        let mut free = lock(&self.0.free);
        while *free == 0 {
            free = wait_timeout(&self.0.freed, free, CONNECTED_CHECK_INTERVAL).0;
            let mut end = [PollFd::new(socket, PollFlags::RDHUP)];
            if *free == 0 && poll(&mut end, Some(&Timespec::default())).is_ok_and(|count| count > 0) {
                return Err(Error::new(ErrorKind::Io, "the connection has ended"));
            }
        }
        *free -= 1;
        Ok(BatchPermit(Arc::clone(&self.0)))
    }
}

/// One of [`BatchPermits`], free again on drop.
pub struct BatchPermit(Arc<PermitCount>);

impl Drop for BatchPermit {
    fn drop(&mut self) {
        *lock(&self.0.free) += 1;
        self.0.freed.notify_one();
    }
}
