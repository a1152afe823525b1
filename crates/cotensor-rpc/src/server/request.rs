//! One call on its way to its answer, and the peer that gets it.

use super::batch::{Batch, Finished};
use super::counters::CallCounts;
use crate::frame::{FRAME_BYTES_MAX, Frame};
use crate::message::{Call, Id, Response, to_object};
use cotensor_core::Result;
use jsonrpsee_types::{ErrorCode, ErrorObjectOwned};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The other end of a connection that a server answers: its limits and its socket.
pub trait Peer: Sized + Send + Sync + 'static {
    /// Counts the calls of this peer and their errors.
    fn counts(&self) -> &CallCounts;

    /// Admits a call before its handler runs. [`finished`](Self::finished) follows for every call, also for a refused
    /// one.
    ///
    /// # Errors
    /// The answer to the call instead of its result.
    fn admit(&self, call: &Call) -> Result<()>;

    /// Answers a call of a method that the registry does not have.
    fn unknown(request: Request<Self>, _method: &str, _params: Option<&RawValue>) {
        request.error(ErrorObjectOwned::from(ErrorCode::MethodNotFound));
    }

    /// A call that [`admit`](Self::admit) saw has its answer.
    fn finished(&self) {}

    /// Checks that an answer of `bytes` bytes may join the answers that wait to be sent.
    ///
    /// # Errors
    /// The answer to send instead.
    fn check_backlog(&self, _bytes: usize) -> Result<()> {
        Ok(())
    }

    /// Queues a message for the peer. False when it will not arrive.
    fn send(&self, frame: Frame) -> bool;
}

/// A call that has no answer yet. It is answered once, on any thread; dropped without an answer, it gets an internal
/// error.
pub struct Request<P: Peer> {
    peer: Arc<P>,
    /// None for a notification, which has no answer.
    id: Option<Id>,
    fds: Vec<OwnedFd>,
    batch: Option<Arc<Batch>>,
    answered: bool,
}

impl<P: Peer> Request<P> {
    pub(super) fn new(peer: &Arc<P>, id: Option<Id>, fds: Vec<OwnedFd>, batch: Option<Arc<Batch>>) -> Self {
        Self { peer: Arc::clone(peer), id, fds, batch, answered: false }
    }

    /// The caller.
    pub fn peer(&self) -> &Arc<P> {
        &self.peer
    }

    /// The call's id, if it is an integer.
    pub fn id(&self) -> Option<u64> {
        self.id.as_ref().and_then(Id::as_u64)
    }

    /// Whether the call is a notification.
    pub fn is_notification(&self) -> bool {
        self.id.is_none()
    }

    /// The descriptors that came with the call, the first time.
    pub fn take_fds(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.fds)
    }

    /// Answers with a result or an error.
    pub fn finish<T: Serialize>(self, outcome: Result<T>) {
        match outcome {
            Ok(value) => drop(self.value(&value, Vec::new())),
            Err(error) => self.error(to_object(&error)),
        }
    }

    /// Answers with a result and descriptors. False when the caller does not get the result: it gets an error instead, because the result is
    /// too long or too many answers wait to be read; the call is a notification; or the connection has ended.
    pub fn value(self, value: &impl Serialize, fds: Vec<OwnedFd>) -> bool {
        self.value_or(value, fds, || {})
    }

    /// As [`value`](Self::value). `unsent` takes back what the result gives to a caller that does not get it. It runs before the caller can
    /// see an error.
    pub fn value_or(mut self, value: &impl Serialize, fds: Vec<OwnedFd>, unsent: impl FnOnce()) -> bool {
        self.answer(to_raw_value(value).map_err(|_| ErrorCode::InternalError.into()), fds, unsent)
    }

    /// Answers with an error.
    pub fn error(mut self, error: ErrorObjectOwned) {
        self.answer(Err(error), Vec::new(), || {});
    }

    /// Drops the call without an answer: its connection has ended.
    pub fn cancel(mut self) {
        self.answered = true;
        self.peer.finished();
    }

    fn answer(
        &mut self,
        outcome: Result<Box<RawValue>, ErrorObjectOwned>,
        fds: Vec<OwnedFd>,
        unsent: impl FnOnce(),
    ) -> bool {
        self.answered = true;
        self.peer.finished();
        if let Err(error) = &outcome {
            self.peer.counts().add_error(error.code());
        }
        let is_error = outcome.is_err();
        let response = self.id.take().map(|id| Response::new(id, outcome));
        let is_notification = response.is_none();
        let (message, error_code) = match (&self.batch, response) {
            (Some(batch), response) => {
                let Finished { error_code, message } = batch.finish(response, fds);
                (message, error_code)
            }
            (None, Some(response)) => self.message(&response, fds),
            (None, None) => (None, None),
        };
        if let Some(code) = error_code {
            self.peer.counts().add_error(code);
        }
        let is_left_out = is_notification || is_error || error_code.is_some();
        if is_left_out {
            unsent();
            if let Some(message) = message {
                self.peer.send(message);
            }
            return false;
        }
        let is_sent = message.is_none_or(|message| self.peer.send(message));
        if !is_sent {
            unsent();
        }
        is_sent
    }

    /// The message of one answer, and the code of the error that took the answer's place, if one did.
    fn message(&self, response: &Response, fds: Vec<OwnedFd>) -> (Option<Frame>, Option<i32>) {
        let sized = response.to_bytes(FRAME_BYTES_MAX);
        match sized.and_then(|body| self.peer.check_backlog(body.len()).map(|()| body)) {
            Ok(body) => (Some(Frame { body, fds }), None),
            Err(error) => {
                let error = to_object(&error);
                let code = error.code();
                (Some(Frame::new(response.with_error(error))), Some(code))
            }
        }
    }
}

impl<P: Peer> Drop for Request<P> {
    fn drop(&mut self) {
        if !self.answered {
            self.answer(Err(ErrorCode::InternalError.into()), Vec::new(), || {});
        }
    }
}
