//! Many calls in one round trip.

use super::session::{Session, WORK_TIMEOUT};
use crate::protocol::Method;
use cotensor_core::waiting::Waiting;
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_rpc::{Connection, PendingCall, WaitLimit, Waited};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::Instant;

/// The most calls without an answer. The daemon lets twice as many wait for one connection, which several threads may use.
pub(super) const UNANSWERED_MAX: usize = 512;
/// The same for calls whose answers can carry a descriptor. The daemon keeps twice as many descriptors for a client that does not read.
pub(super) const UNANSWERED_WITH_DESCRIPTORS_MAX: usize = 128;

impl Session {
    /// Calls a method with each of `params`. Up to `unanswered_max` requests are sent before the first answer is read, and then one for each
    /// answer: as many calls take one round trip. The results are in the order of `params`.
    ///
    /// # Errors
    /// Each as [`call_long`](Self::call_long).
    pub(super) fn call_each<M: Method>(
        &self,
        params: &[M::Params],
        unanswered_max: usize,
    ) -> Vec<Result<(M::Result, Vec<OwnedFd>)>> {
        call_each::<M>(&self.connection, params, unanswered_max)
    }
}

fn call_each<M: Method>(
    connection: &Connection,
    params: &[M::Params],
    unanswered_max: usize,
) -> Vec<Result<(M::Result, Vec<OwnedFd>)>> {
    let (describe, deadline) = (|| connection.describe(M::NAME), Instant::now().checked_add(WORK_TIMEOUT));
    let (mut unanswered, mut results) = (VecDeque::new(), Vec::with_capacity(params.len()));
    let mut params = params.iter();
    loop {
        let waiting = Waiting::new(&describe);
        let limit = WaitLimit { deadline, keep_waiting: None, waiting: Some(&waiting) };
        let next = if unanswered.len() < unanswered_max { params.next() } else { None };
        if let Some(params) = next {
            unanswered.push_back(connection.send_call::<M>(params, Vec::new(), &limit));
        } else if let Some(call) = unanswered.pop_front() {
            results.push(call.and_then(|call| answer_to::<M>(connection, call, &limit)));
        } else {
            return results;
        }
    }
}

fn answer_to<M: Method>(
    connection: &Connection,
    call: PendingCall<'_>,
    limit: &WaitLimit<'_>,
) -> Result<(M::Result, Vec<OwnedFd>)> {
    let Waited::Answer(answer) = call.wait(limit)? else {
        // A late answer could carry a lease.
        connection.close();
        return Err(Error::new(ErrorKind::TimedOut, "the daemon did not answer in time"));
    };
    let value = answer.response.outcome()?;
    let result = serde_json::from_str(value.get())
        .map_err(|error| Error::corrupt(format!("the answer to {}: {error}", M::NAME)))?;
    Ok((result, answer.fds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol as p;
    use cotensor_rpc::{Decoder, Frame, send_all};
    use serde_json::{Value, json};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    /// A daemon that answers when the test says so.
    struct Daemon {
        socket: UnixStream,
        decoder: Decoder,
    }

    impl Daemon {
        fn new() -> (Connection, Self) {
            let (ours, socket) = UnixStream::pair().unwrap();
            (Connection::over(ours, Box::new(|_: &str, _: &_, _| {})), Self { socket, decoder: Decoder::default() })
        }

        /// Reads `count` requests. Returns their ids.
        fn read(&mut self, count: usize) -> Vec<Value> {
            let mut ids = Vec::new();
            while ids.len() < count {
                match self.decoder.take().unwrap() {
                    Some(frame) => ids.push(serde_json::from_slice::<Value>(&frame.body).unwrap()["id"].take()),
                    None => assert!(self.decoder.fill(self.socket.as_fd()).unwrap() > 0, "the client has ended"),
                }
            }
            ids
        }

        fn answer(&self, ids: impl IntoIterator<Item = Value>) {
            for id in ids {
                let body = json!({"jsonrpc": "2.0", "id": id, "result": {}}).to_string().into_bytes();
                send_all(self.socket.as_fd(), &Frame::new(body)).unwrap();
            }
        }
    }

    fn pings(connection: &Connection, count: usize, unanswered_max: usize) -> Vec<bool> {
        let params: Vec<_> = (0..count).map(|_| p::Empty {}).collect();
        let results = call_each::<p::Ping>(connection, &params, unanswered_max);
        results.iter().map(Result::is_ok).collect()
    }

    #[test]
    fn hundreds_of_requests_are_sent_before_the_first_answer() {
        let (connection, mut daemon) = Daemon::new();
        std::thread::scope(|scope| {
            let calls = scope.spawn(|| pings(&connection, 400, UNANSWERED_MAX));
            let mut ids = daemon.read(400);
            ids.reverse();
            daemon.answer(ids);
            assert_eq!(calls.join().unwrap(), [true; 400]);
        });
    }

    #[test]
    fn each_answer_lets_another_request_be_sent() {
        let (connection, mut daemon) = Daemon::new();
        std::thread::scope(|scope| {
            let calls = scope.spawn(|| pings(&connection, 300, UNANSWERED_WITH_DESCRIPTORS_MAX));
            let mut ids = VecDeque::from(daemon.read(UNANSWERED_WITH_DESCRIPTORS_MAX));
            for _ in UNANSWERED_WITH_DESCRIPTORS_MAX..300 {
                daemon.answer(ids.pop_front());
                ids.extend(daemon.read(1));
            }
            daemon.answer(ids);
            assert_eq!(calls.join().unwrap(), [true; 300]);
        });
    }

    #[test]
    fn end_of_the_connection_is_the_error_of_calls_without_an_answer() {
        let (connection, mut daemon) = Daemon::new();
        std::thread::scope(|scope| {
            let calls = scope.spawn(|| pings(&connection, 3, 2));
            let ids = daemon.read(2);
            daemon.answer(ids.into_iter().take(1));
            daemon.read(1);
            drop(daemon);
            assert_eq!(calls.join().unwrap(), [true, false, false]);
        });
    }
}
