//! The answer that a call gets, once.

use super::peer::Peer;
use crate::wire::rpc::{self, Response};
use cotensor_core::Error;
use jsonrpsee_types::{ErrorCode, ErrorObjectOwned, Id};
use serde::Serialize;
use std::sync::{Arc, Mutex};

use super::lock;

/// The answer that a call will get. Dropped without one, the call gets an error: nobody waits for nothing.
pub(super) struct Reply {
    peer: Arc<Peer>,
    /// None for a notification, which is never answered.
    id: Option<Id<'static>>,
    batch: Option<Arc<Batch>>,
    sent: bool,
}

/// Calls that are answered together.
pub(super) struct Batch(Mutex<(usize, Vec<Response>)>);

impl Batch {
    /// For `calls` answers, besides those that are there.
    pub(super) fn new(calls: usize, answered: Vec<Response>) -> Arc<Self> {
        Arc::new(Self(Mutex::new((calls, answered))))
    }

    /// One call is over. All answers, when it was the last.
    fn over(&self, response: Option<Response>) -> Option<Vec<Response>> {
        let mut state = lock(&self.0);
        state.0 = state.0.saturating_sub(1);
        state.1.extend(response);
        (state.0 == 0).then(|| std::mem::take(&mut state.1))
    }
}

impl Reply {
    pub(super) fn new(peer: &Arc<Peer>, id: Option<Id<'static>>, batch: Option<Arc<Batch>>) -> Self {
        Self { peer: Arc::clone(peer), id, batch, sent: false }
    }

    pub(super) fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }

    /// Answers.
    pub(super) fn send<T: Serialize>(self, outcome: Result<T, Error>) {
        match outcome {
            Ok(value) => self.value(&value),
            Err(error) => self.error(rpc::to_object(&error)),
        }
    }

    pub(super) fn value(mut self, value: &impl Serialize) {
        let outcome = serde_json::value::to_raw_value(value).map_err(|_| ErrorCode::InternalError.into());
        self.finish(outcome);
    }

    pub(super) fn error(mut self, error: ErrorObjectOwned) {
        self.finish(Err(error));
    }

    fn finish(&mut self, outcome: Result<Box<serde_json::value::RawValue>, ErrorObjectOwned>) {
        if std::mem::replace(&mut self.sent, true) {
            return;
        }
        self.peer.answered();
        let response = self.id.take().map(|id| Response::new(id, outcome));
        match &self.batch {
            None => {
                if let Some(response) = response {
                    self.peer.send(&response);
                }
            }
            Some(batch) => {
                if let Some(responses) = batch.over(response)
                    && !responses.is_empty()
                {
                    self.peer.send(&responses);
                }
            }
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.finish(Err(ErrorCode::InternalError.into()));
    }
}
