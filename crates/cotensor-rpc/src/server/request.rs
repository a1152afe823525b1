//! One call on its way to its answer, and the peer that gets it.

use super::batch::{Batch, Finished, Settle};
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
    /// too long or too many answers wait to be read; the call is a notification; or the connection has ended. In a batch, whose message may
    /// be sent later, only the first three are known.
    pub fn value(mut self, value: &impl Serialize, fds: Vec<OwnedFd>) -> bool {
        self.answer(to_raw_value(value).map_err(|_| ErrorCode::InternalError.into()), fds, None)
    }

    /// As [`value`](Self::value). `settle` is called once, with whether the caller gets the result: when its message is sent, also that of a
    /// batch, or before the caller can see an error.
    pub fn value_settled(
        mut self,
        value: &impl Serialize,
        fds: Vec<OwnedFd>,
        settle: impl FnOnce(bool) + Send + 'static,
    ) {
        match to_raw_value(value) {
            Ok(value) => {
                self.answer(Ok(value), fds, Some(Box::new(settle)));
            }
            Err(_) => {
                settle(false);
                self.error(ErrorCode::InternalError.into());
            }
        }
    }

    /// Answers with an error.
    pub fn error(mut self, error: ErrorObjectOwned) {
        self.answer(Err(error), Vec::new(), None);
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
        settle: Option<Settle>,
    ) -> bool {
        self.answered = true;
        self.peer.finished();
        if let Err(error) = &outcome {
            self.peer.counts().add_error(error.code());
        }
        let is_result = outcome.is_ok() && self.id.is_some();
        let response = self.id.take().map(|id| Response::new(id, outcome));
        let finished = match (&self.batch, response) {
            (Some(batch), response) => batch.finish(response, fds, settle),
            (None, Some(response)) => self.alone(&response, fds, settle),
            (None, None) => Finished { error_code: None, message: None, settles: Vec::new(), left_out: settle },
        };
        if let Some(code) = finished.error_code {
            self.peer.counts().add_error(code);
        }
        let is_left_out = !is_result || finished.error_code.is_some();
        finished.send(&*self.peer) && !is_left_out
    }

    /// The message of an answer that is in no batch.
    fn alone(&self, response: &Response, fds: Vec<OwnedFd>, settle: Option<Settle>) -> Finished {
        let sized = response.to_bytes(FRAME_BYTES_MAX);
        match sized.and_then(|body| self.peer.check_backlog(body.len()).map(|()| body)) {
            Ok(body) => {
                let settles = settle.into_iter().collect();
                Finished { error_code: None, message: Some(Frame { body, fds }), settles, left_out: None }
            }
            Err(error) => {
                let error = to_object(&error);
                let error_code = Some(error.code());
                let message = Some(Frame::new(response.with_error(error)));
                Finished { error_code, message, settles: Vec::new(), left_out: settle }
            }
        }
    }
}

impl Finished {
    /// Sends the message, if it is complete, and settles what that decides. False when it does not arrive.
    pub(super) fn send<P: Peer>(self, peer: &P) -> bool {
        // Before the caller can see an error.
        self.left_out.into_iter().for_each(|settle| settle(false));
        let is_sent = self.message.is_none_or(|message| peer.send(message));
        self.settles.into_iter().for_each(|settle| settle(is_sent));
        is_sent
    }
}

impl<P: Peer> Drop for Request<P> {
    fn drop(&mut self) {
        if !self.answered {
            self.answer(Err(ErrorCode::InternalError.into()), Vec::new(), None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_core::sync::lock;
    use std::sync::Mutex;

    struct Caller {
        counts: CallCounts,
        is_connected: bool,
    }

    impl Peer for Caller {
        fn counts(&self) -> &CallCounts {
            &self.counts
        }

        fn admit(&self, _: &Call) -> Result<()> {
            Ok(())
        }

        fn send(&self, _: Frame) -> bool {
            self.is_connected
        }
    }

    /// Answers the calls of a batch: one number for each, or an error. Returns what was settled after each answer.
    fn settled(is_connected: bool, calls: usize, answers: &[Option<u64>]) -> Vec<Vec<(u64, bool)>> {
        let peer = Arc::new(Caller { counts: CallCounts::default(), is_connected });
        let batch = Batch::new(calls, None);
        let settled = Arc::new(Mutex::new(Vec::new()));
        let mut after: Vec<_> = answers
            .iter()
            .map(|answer| {
                let id = serde_json::from_str("1").unwrap();
                let request = Request::new(&peer, Some(id), Vec::new(), Some(Arc::clone(&batch)));
                match *answer {
                    Some(number) => {
                        let settled = Arc::clone(&settled);
                        request
                            .value_settled(&number, Vec::new(), move |is_sent| lock(&settled).push((number, is_sent)));
                    }
                    None => request.error(ErrorCode::InternalError.into()),
                }
                lock(&settled).clone()
            })
            .collect();
        drop(batch);
        after.push(lock(&settled).clone());
        after
    }

    #[test]
    fn results_of_a_batch_are_settled_by_its_message() {
        let both = |is_sent| vec![(1, is_sent), (2, is_sent)];
        assert_eq!(settled(true, 3, &[Some(1), None, Some(2)]), [vec![], vec![], both(true), both(true)]);
        assert_eq!(settled(false, 2, &[Some(1), Some(2)]), [vec![], both(false), both(false)]);
        // The other call of the batch gets no answer, such as a call that waits when its caller has gone.
        assert_eq!(settled(true, 2, &[Some(1)]), [vec![], vec![(1, false)]]);
    }

    #[test]
    fn result_that_gets_no_message_is_settled_at_once() {
        let peer = Arc::new(Caller { counts: CallCounts::default(), is_connected: true });
        for (id, batch) in [(None, None), (None, Some(Batch::new(1, None)))] {
            let settled = Arc::new(Mutex::new(None));
            let seen = Arc::clone(&settled);
            let notification = Request::new(&peer, id, Vec::new(), batch);
            notification.value_settled(&1, Vec::new(), move |is_sent| *lock(&seen) = Some(is_sent));
            assert_eq!(*lock(&settled), Some(false));
        }
    }
}
