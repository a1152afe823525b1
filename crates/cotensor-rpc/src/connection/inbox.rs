//! Calls without an answer, and answers that no thread has taken.

use crate::message::Response;
use cotensor_core::Error;
use cotensor_core::sync::lock;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

/// The answer to a call, or to a batch of calls.
pub struct Answer {
    /// The result or the error.
    pub response: Response,
    /// The descriptors of the answer, in a batch those of all answers in their order.
    pub fds: Vec<OwnedFd>,
    /// The further answers to a batch, in their order in the message.
    pub(super) further: Vec<Response>,
}

/// Calls that one thread waits for together, in the order of their answers.
#[derive(Default)]
pub struct CallGroup {
    answers: Mutex<Vec<(u64, Answer)>>,
}

impl CallGroup {
    pub(super) fn has_answers(&self) -> bool {
        !lock(&self.answers).is_empty()
    }

    pub(super) fn push(&self, id: u64, answer: Answer) {
        lock(&self.answers).push((id, answer));
    }

    pub(super) fn take(&self) -> Vec<(u64, Answer)> {
        std::mem::take(&mut *lock(&self.answers))
    }
}

#[derive(Default)]
pub(super) struct Inbox {
    /// Calls of single callers, and their answers once they have arrived.
    pub(super) calls: HashMap<u64, Option<Answer>>,
    /// Calls whose answers go to a group.
    pub(super) grouped: HashMap<u64, Arc<CallGroup>>,
    /// Whether one of the callers reads the socket.
    pub(super) reading: bool,
    /// The number of callers that wait for that one.
    pub(super) followers: usize,
    /// Why the connection ended, if it did.
    pub(super) closed: Option<Error>,
}

impl Inbox {
    pub(super) fn has_answer(&self, id: u64) -> bool {
        self.calls.get(&id).is_some_and(Option::is_some)
    }

    pub(super) fn deliver_all(&mut self, answers: Vec<(u64, Answer)>) {
        for (id, answer) in answers {
            self.deliver(id, answer);
        }
    }

    /// Passes an answer to its caller. An answer to a forgotten call is dropped.
    fn deliver(&mut self, id: u64, answer: Answer) {
        if let Some(waiting) = self.calls.get_mut(&id) {
            *waiting = Some(answer);
        } else if let Some(group) = self.grouped.remove(&id) {
            group.push(id, answer);
        }
    }
}
