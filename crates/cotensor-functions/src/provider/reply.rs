//! The answer that a call gets, once.

use super::peer::Peer;
use cotensor_core::Error;
use cotensor_core::sync::lock;
use cotensor_rpc::FRAME_BYTES_MAX;
use cotensor_rpc::{self as rpc, BATCH_MAX, Id, Response};
use jsonrpsee_types::{ErrorCode, ErrorObjectOwned};
use serde::Serialize;
use std::sync::{Arc, Mutex};

/// Bytes that are left in a batch's answer for each call, so that every one can be answered by an error at least.
const ERROR_BYTES_MAX: usize = 1024;

/// The answer that a call will get. Dropped without one, the call gets an error: nobody waits for nothing.
pub(super) struct Reply {
    peer: Arc<Peer>,
    /// None for a notification, which is never answered.
    id: Option<Id>,
    batch: Option<Arc<Batch>>,
    sent: bool,
}

/// Calls that are answered together, in one message.
pub(super) struct Batch(Mutex<Answers>);

struct Answers {
    /// Calls that are not over.
    open: usize,
    /// The message: a list that is not closed yet.
    body: Vec<u8>,
}

impl Answers {
    /// Adds an answer, or an error where it is too long for what is left of the message: false then.
    fn add(&mut self, response: &Response) -> bool {
        let left = FRAME_BYTES_MAX - BATCH_MAX * ERROR_BYTES_MAX;
        let (answer, whole) = response.to_bytes(left.saturating_sub(self.body.len()).max(ERROR_BYTES_MAX));
        self.body.push(if self.body.is_empty() { b'[' } else { b',' });
        self.body.extend_from_slice(&answer);
        whole
    }
}

impl Batch {
    /// For `calls` answers, besides those that are there.
    pub(super) fn new(calls: usize, answered: Vec<Response>) -> Arc<Self> {
        let mut answers = Answers { open: calls, body: Vec::new() };
        for response in &answered {
            answers.add(response);
        }
        Arc::new(Self(Mutex::new(answers)))
    }

    /// One call is over. Whether its answer is in the message, and the message once it is complete.
    fn over(&self, response: Option<&Response>) -> (bool, Option<Vec<u8>>) {
        let mut answers = lock(&self.0);
        answers.open = answers.open.saturating_sub(1);
        let whole = response.is_none_or(|response| answers.add(response));
        let complete = answers.open == 0 && !answers.body.is_empty();
        let body = complete.then(|| {
            answers.body.push(b']');
            std::mem::take(&mut answers.body)
        });
        (whole, body)
    }
}

impl Reply {
    pub(super) fn new(peer: &Arc<Peer>, id: Option<Id>, batch: Option<Arc<Batch>>) -> Self {
        Self { peer: Arc::clone(peer), id, batch, sent: false }
    }

    pub(super) fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }

    /// Answers.
    pub(super) fn send<T: Serialize>(self, outcome: Result<T, Error>) {
        match outcome {
            Ok(value) => {
                self.value(&value);
            }
            Err(error) => self.error(rpc::to_object(&error)),
        }
    }

    /// Answers with a result; false when an error went in its place, because it is too long.
    pub(super) fn value(mut self, value: &impl Serialize) -> bool {
        let outcome = serde_json::value::to_raw_value(value).map_err(|_| ErrorCode::InternalError.into());
        self.finish(outcome)
    }

    pub(super) fn error(mut self, error: ErrorObjectOwned) {
        self.finish(Err(error));
    }

    fn finish(&mut self, outcome: Result<Box<serde_json::value::RawValue>, ErrorObjectOwned>) -> bool {
        if std::mem::replace(&mut self.sent, true) {
            return true;
        }
        self.peer.answered();
        let response = self.id.take().map(|id| Response::new(id, outcome));
        match &self.batch {
            None => response.is_none_or(|response| self.peer.send(&response)),
            Some(batch) => {
                let (whole, body) = batch.over(response.as_ref());
                if let Some(body) = body {
                    self.peer.send_body(body);
                }
                whole
            }
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.finish(Err(ErrorCode::InternalError.into()));
    }
}
