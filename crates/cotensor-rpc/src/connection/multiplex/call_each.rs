//! Many calls of one method in a few messages.

use super::calls::result_of;
use super::{Answer, Connection, PendingCall, WaitLimit};
use crate::frame::Frame;
use crate::message::encode_call;
use crate::method::Method;
use cotensor_core::waiting::Waiting;
use cotensor_core::{Error, Result};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The length from which on a message gets no further call.
const BATCH_BYTES: usize = 1 << 20;

/// How many calls are sent together.
#[derive(Clone, Copy, Debug)]
pub struct CallsMax {
    /// The most calls of one message, a batch, at least one. The server answers all of them by one message, whose descriptors are limited.
    pub in_message: usize,
    /// The most calls without an answer. One message is sent also beyond it.
    pub unanswered: usize,
}

/// A message without its answer: the number of each of its calls, and its place among all.
struct SentBatch<'c> {
    calls: Vec<(u64, usize)>,
    pending: Result<PendingCall<'c>>,
}

type Outcome<M> = Result<(<M as Method>::Result, Vec<OwnedFd>)>;

impl Connection {
    /// Calls a method with each of `params`, several in one message. Further messages are sent before the first answer is read, as `max` allows, and
    /// then with each answer: as many calls take one round trip. `fds_of` tells how many descriptors belong to a result. The results are in the
    /// order of `params`.
    ///
    /// # Errors
    /// Each as [`call`](Self::call); the time-out is that of all together.
    pub fn call_each<M: Method>(
        &self,
        params: &[M::Params],
        max: CallsMax,
        fds_of: impl Fn(&M::Result) -> usize,
        timeout: Duration,
    ) -> Vec<Outcome<M>> {
        let (describe, deadline) = (|| self.describe(M::NAME), WaitLimit::after(Some(timeout)).deadline);
        let mut outcomes: Vec<Option<Outcome<M>>> = params.iter().map(|_| None).collect();
        let (mut next, mut unanswered, mut sent) = (0, 0, VecDeque::new());
        loop {
            let waiting = Waiting::new(&describe);
            let limit = WaitLimit { deadline, ..WaitLimit::default() }.reported(&waiting);
            if next < params.len() && (unanswered == 0 || unanswered + max.in_message <= max.unanswered) {
                let (batch, end) = self.send_batch::<M>(params, next, max.in_message, &mut outcomes, &limit);
                next = end;
                unanswered += batch.calls.len();
                sent.push_back(batch);
            } else if let Some(SentBatch { calls, pending }) = sent.pop_front() {
                unanswered -= calls.len();
                match pending.and_then(|pending| self.answer_to(pending, &limit)) {
                    Ok(answer) => enter::<M>(answer, &calls, &fds_of, &mut outcomes),
                    Err(error) => calls.iter().for_each(|(_, place)| outcomes[*place] = Some(Err(error.clone()))),
                }
            } else {
                let lost = || Err(Error::corrupt(format!("an answer to {} was lost", M::NAME)));
                return outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(lost)).collect();
            }
        }
    }

    /// Sends the calls from place `next` on, as many as one message takes. Returns the place after them.
    fn send_batch<M: Method>(
        &self,
        params: &[M::Params],
        mut next: usize,
        calls_max: usize,
        outcomes: &mut [Option<Outcome<M>>],
        limit: &WaitLimit<'_>,
    ) -> (SentBatch<'_>, usize) {
        let (mut calls, mut body) = (Vec::new(), Vec::new());
        while next < params.len() && calls.len() < calls_max.max(1) && body.len() < BATCH_BYTES {
            let id = self.next_id.fetch_add(1, Ordering::Relaxed);
            match encode_call(Some(id), M::NAME, &params[next]) {
                Ok(call) => {
                    body.push(if calls.is_empty() { b'[' } else { b',' });
                    body.extend_from_slice(&call);
                    calls.push((id, next));
                }
                Err(error) => outcomes[next] = Some(Err(error)),
            }
            next += 1;
        }
        match calls.len() {
            0 | 1 => drop(body.drain(..1.min(body.len()))),
            _ => body.push(b']'),
        }
        let pending = match calls.first() {
            Some((id, _)) => self
                .send_encoded(*id, Frame { body, fds: Vec::new() }, None, limit)
                .map(|()| PendingCall { connection: self, id: *id }),
            None => Err(Error::invalid("no call")),
        };
        (SentBatch { calls, pending }, next)
    }
}

/// Enters the answers to a message into the outcomes of its calls. Each takes its descriptors from those of the message.
fn enter<M: Method>(
    Answer { response, fds, further }: Answer,
    calls: &[(u64, usize)],
    fds_of: impl Fn(&M::Result) -> usize,
    outcomes: &mut [Option<Outcome<M>>],
) {
    let mut fds = fds.into_iter();
    for response in std::iter::once(response).chain(further) {
        let (id, is_error) = (response.id.as_u64(), response.error().is_some());
        let value = result_of::<M>(response);
        // The owner of each further descriptor is unknown after a result that cannot be read.
        let is_unreadable = value.is_err() && !is_error;
        let own = value.as_ref().map_or(0, &fds_of);
        let outcome = value.map(|value| (value, fds.by_ref().take(own).collect()));
        if let Ok(call) = calls.binary_search_by_key(&id, |(known, _)| Some(*known)) {
            outcomes[calls[call].1] = Some(outcome);
        }
        if is_unreadable {
            return;
        }
    }
}
