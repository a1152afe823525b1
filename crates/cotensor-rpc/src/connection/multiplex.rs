//! A connection that many threads call over. A caller that waits also reads for the others, so an answer wakes no extra
//! thread.

mod call_each;
mod calls;

pub use call_each::CallsMax;

use super::inbox::{Answer, CallGroup, Inbox};
use super::sending::Sending;
use super::wait_limit::{WaitLimit, cancelled_call};
use crate::busy_poll::BusyPoll;
use crate::frame::{Decoder, Frame};
use crate::message::{Incoming, encode_call, parse_incoming};
use crate::method::Method;
use cotensor_core::sync::{get_mut, lock, wait, wait_timeout};
use cotensor_core::waiting::{REPORT_AFTER, WaitReport};
use cotensor_core::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, poll};
use serde_json::value::RawValue;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// The busy-poll time of a caller: most of the daemon's answers arrive sooner.
const BUSY_POLL: Duration = Duration::from_micros(80);
/// The longest single wait for data; a longer wait consists of several. A wait is reported between them.
const READ_TIMEOUT: Duration = REPORT_AFTER;

/// Called with the method, the parameters and the descriptors of each notification.
pub type OnNotification = Box<dyn Fn(&str, &RawValue, Vec<OwnedFd>) + Send + Sync>;

/// Describes a wait for the other end's answer to a method.
pub type DescribeWait = Box<dyn Fn(&str) -> WaitReport + Send + Sync>;

/// A connection to a server. All methods may be called from any thread.
pub struct Connection {
    socket: Arc<UnixStream>,
    /// The name of the other end, for error messages.
    peer_name: String,
    describe: Option<DescribeWait>,
    sending: Arc<Sending>,
    next_id: AtomicU64,
    reading: Mutex<Reading>,
    inbox: Mutex<Inbox>,
    arrived: Condvar,
    on_notification: OnNotification,
}

struct Reading {
    decoder: Decoder,
    busy_poll: BusyPoll,
    /// The socket's read timeout. Setting it costs a system call.
    timeout: Option<Duration>,
}

/// A call without its answer. Wait for the answer: it may carry a lease.
#[must_use]
pub struct PendingCall<'a> {
    connection: &'a Connection,
    id: u64,
}

/// The outcome of waiting for an answer.
pub enum Waited {
    /// The answer.
    Answer(Answer),
    /// The limit has passed. The call with this number still waits for its answer; see [`Connection::abandon`].
    LimitPassed(u64),
}

impl PendingCall<'_> {
    /// Waits for the answer, at most until the limit.
    ///
    /// # Errors
    /// `Io` when the connection ends.
    pub fn wait(self, limit: &WaitLimit<'_>) -> Result<Waited> {
        let answer = self.connection.wait(Some(self.id), None, limit)?;
        Ok(answer.map_or(Waited::LimitPassed(self.id), Waited::Answer))
    }
}

impl Connection {
    /// A connection over a connected socket.
    pub fn over(socket: UnixStream, on_notification: OnNotification) -> Self {
        Self {
            socket: Arc::new(socket),
            peer_name: "the daemon".to_owned(),
            describe: None,
            sending: Arc::default(),
            next_id: AtomicU64::new(1),
            reading: Mutex::new(Reading {
                decoder: Decoder::default(),
                busy_poll: BusyPoll::new(BUSY_POLL),
                timeout: None,
            }),
            inbox: Mutex::default(),
            arrived: Condvar::new(),
            on_notification,
        }
    }

    /// Names the other end, for error messages.
    pub fn with_peer_name(mut self, name: &str) -> Self {
        name.clone_into(&mut self.peer_name);
        self
    }

    /// Reports calls that wait for a long time. `describe` is called by the waiting thread.
    pub fn with_reports(mut self, describe: DescribeWait) -> Self {
        self.describe = Some(describe);
        self
    }

    /// A report of a wait for the answer to a method.
    pub fn describe(&self, method: &str) -> WaitReport {
        let unknown = || WaitReport { text: format!("waiting for {}", self.peer_name), is_expected: false };
        self.describe.as_ref().map_or_else(unknown, |describe| describe(method))
    }

    /// Sets how long a caller busy-polls for an answer before it sleeps.
    pub fn with_busy_poll(mut self, duration: Duration) -> Self {
        get_mut(&mut self.reading).busy_poll = BusyPoll::new(duration);
        self
    }

    /// Sends a call.
    ///
    /// # Errors
    /// `Invalid` for a message past the limits; `Io` when the connection ends; `TimedOut`, or `Conflict` when the
    /// caller stops waiting, if the message could not be sent before the limit.
    pub fn send_call<M: Method>(
        &self,
        params: &M::Params,
        fds: Vec<OwnedFd>,
        limit: &WaitLimit<'_>,
    ) -> Result<PendingCall<'_>> {
        Ok(PendingCall { connection: self, id: self.send_request::<M>(params, fds, None, limit)? })
    }

    /// Sends a call whose answer goes to `group`, for [`wait_for`](Self::wait_for). Returns the call's number.
    ///
    /// # Errors
    /// As [`send_call`](Self::send_call).
    pub fn send_grouped<M: Method>(
        &self,
        params: &M::Params,
        group: &Arc<CallGroup>,
        limit: &WaitLimit<'_>,
    ) -> Result<u64> {
        self.send_request::<M>(params, Vec::new(), Some(group), limit)
    }

    /// Redirects the answer to a call to `group`. False when it has gone to the call's own group already.
    pub fn abandon(&self, id: u64, group: &Arc<CallGroup>) -> bool {
        let mut inbox = lock(&self.inbox);
        match (inbox.calls.remove(&id), inbox.grouped.remove(&id)) {
            (Some(Some(answer)), _) => group.push(id, answer),
            (None, None) => return false,
            _ => drop(inbox.grouped.insert(id, Arc::clone(group))),
        }
        drop(inbox);
        self.arrived.notify_all();
        true
    }

    /// Waits for answers to calls of the group. Empty after the limit.
    ///
    /// # Errors
    /// `Io` when the connection ends and no answer is left.
    pub fn wait_for(&self, group: &CallGroup, limit: &WaitLimit<'_>) -> Result<Vec<(u64, Answer)>> {
        let waited = self.wait(None, Some(group), limit);
        let answers = group.take();
        if answers.is_empty() {
            waited?;
        }
        Ok(answers)
    }

    fn send_request<M: Method>(
        &self,
        params: &M::Params,
        fds: Vec<OwnedFd>,
        group: Option<&Arc<CallGroup>>,
        limit: &WaitLimit<'_>,
    ) -> Result<u64> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let body = encode_call(Some(id), M::NAME, params)?;
        self.send_encoded(id, Frame { body, fds }, group, limit)?;
        Ok(id)
    }

    fn send_encoded(&self, id: u64, frame: Frame, group: Option<&Arc<CallGroup>>, limit: &WaitLimit<'_>) -> Result<()> {
        {
            let mut inbox = lock(&self.inbox);
            if let Some(error) = &inbox.closed {
                return Err(error.clone());
            }
            match group {
                Some(group) => drop(inbox.grouped.insert(id, Arc::clone(group))),
                None => drop(inbox.calls.insert(id, None)),
            }
        }
        let sent = self.sending.send(&self.socket, frame, limit);
        let ended = sent.as_ref().is_err_and(|error| error.kind() == ErrorKind::Io);
        let error = match sent {
            Ok(true) => return Ok(()),
            Ok(false) if limit.has_passed() => self.timeout_error(),
            Ok(false) => cancelled_call(),
            Err(failure) if ended => self.refusal(failure),
            Err(error) => error,
        };
        let mut inbox = lock(&self.inbox);
        inbox.calls.remove(&id);
        inbox.grouped.remove(&id);
        // A part of the message may be sent, so no other message can follow.
        if ended {
            inbox.closed.get_or_insert_with(|| error.clone());
        }
        Err(error)
    }

    /// Ends the connection after a failure to send. Returns the reason that the peer sent before it closed the connection, or else `failure`.
    fn refusal(&self, failure: Error) -> Error {
        let _ = self.socket.shutdown(Shutdown::Both);
        loop {
            // What has arrived, then the end.
            match self.read(&WaitLimit::default()) {
                Ok(answers) => lock(&self.inbox).deliver_all(answers),
                Err(why) if why.kind() == ErrorKind::Io => return failure,
                Err(why) => return why,
            }
        }
    }

    /// Handles notifications until the connection ends, and returns the reason. Other threads may call meanwhile.
    pub fn listen(&self) -> Error {
        match self.wait(None, None, &WaitLimit::default()) {
            Ok(_) => Error::corrupt("an answer to no call"),
            Err(error) => error,
        }
    }

    /// Sends a notification. If the socket has no room, it is sent later; this waits only while thousands of
    /// notifications do.
    ///
    /// # Errors
    /// `Io` when the connection has ended; `Conflict` when the peer does not read for so long that this ends the
    /// connection, which releases everything that the notification would have released.
    pub fn notify<M: Method>(&self, params: &M::Params) -> Result<()> {
        self.send_notification(Frame::new(encode_call(None, M::NAME, params)?))
    }

    /// As [`notify`](Self::notify), for an encoded message.
    ///
    /// # Errors
    /// As [`notify`](Self::notify).
    pub fn send_notification(&self, frame: Frame) -> Result<()> {
        let describe = || self.describe("notifications");
        self.sending.notify(&self.socket, frame, &describe).inspect_err(|error| {
            if error.kind() == ErrorKind::Conflict {
                self.end(error.clone());
            }
        })
    }

    /// Ends the connection. Callers that wait get an error.
    pub fn close(&self) {
        self.end(Error::new(ErrorKind::Io, "the connection was closed"));
    }

    fn end(&self, why: Error) {
        lock(&self.inbox).closed.get_or_insert(why);
        let _ = self.socket.shutdown(Shutdown::Both);
        self.arrived.notify_all();
    }

    /// Waits until either end closes the connection.
    pub fn wait_for_end(&self) {
        // Data and interruptions are ignored.
        loop {
            let mut ends = [PollFd::new(&self.socket, PollFlags::RDHUP)];
            match poll(&mut ends, None) {
                Ok(_) if !ends[0].revents().is_empty() => return,
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    /// Why the connection ended, if a caller has noticed that.
    pub fn closed(&self) -> Option<Error> {
        lock(&self.inbox).closed.clone()
    }

    /// Whether the connection has ended, also if no caller has noticed that yet.
    pub fn has_ended(&self) -> bool {
        let mut state = [PollFd::new(&self.socket, PollFlags::empty())];
        let polled = poll(&mut state, Some(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 }));
        let hung_up = state[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL);
        self.closed().is_some() || (polled.is_ok() && hung_up)
    }

    /// Waits for an answer. None after the limit, and once `group` has an answer. The caller can wait again.
    fn wait(&self, id: Option<u64>, group: Option<&CallGroup>, limit: &WaitLimit<'_>) -> Result<Option<Answer>> {
        let mut inbox = lock(&self.inbox);
        loop {
            if group.is_some_and(CallGroup::has_answers) {
                return Ok(None);
            }
            if let Some(id) = id.filter(|&id| inbox.has_answer(id)) {
                let answer = inbox.calls.remove(&id).flatten();
                return answer.map(Some).ok_or_else(|| Error::corrupt("an answer was lost"));
            }
            if let Some(error) = inbox.closed.clone() {
                id.and_then(|id| inbox.calls.remove(&id));
                return Err(error);
            }
            if limit.has_passed() {
                return Ok(None);
            }
            if inbox.reading {
                inbox.followers += 1;
                inbox = self.follow(inbox, limit);
                inbox.followers -= 1;
            } else {
                inbox.reading = true;
                drop(inbox);
                let read = self.read(limit);
                inbox = lock(&self.inbox);
                inbox.reading = false;
                match read {
                    Ok(answers) => {
                        inbox.deliver_all(answers);
                    }
                    Err(error) => {
                        inbox.closed.get_or_insert(error);

                        let _ = self.socket.shutdown(Shutdown::Both);
                    }
                }
                if inbox.followers > 0 {
                    self.arrived.notify_all();
                }
            }
            let goes_on = !id.is_some_and(|id| inbox.has_answer(id)) && inbox.closed.is_none();
            let is_reported = limit.waiting.is_some_and(|waiting| waiting.left().is_zero());
            if goes_on && (limit.keep_waiting.is_some() || is_reported) {
                // The closures may take locks, and call over this connection.
                drop(inbox);
                limit.check_report();
                if limit.keep_waiting.is_some_and(|keep_waiting| !keep_waiting()) {
                    return Ok(None);
                }
                inbox = lock(&self.inbox);
            }
        }
    }

    /// Waits while another caller reads.
    fn follow<'a>(&self, inbox: MutexGuard<'a, Inbox>, limit: &WaitLimit<'_>) -> MutexGuard<'a, Inbox> {
        match limit.reported_slice() {
            Some(slice) => wait_timeout(&self.arrived, inbox, slice).0,
            None => wait(&self.arrived, inbox),
        }
    }

    /// Reads until a frame arrives or a part of the wait is over. Returns the answers that arrived.
    fn read(&self, limit: &WaitLimit<'_>) -> Result<Vec<(u64, Answer)>> {
        let ended = || Error::new(ErrorKind::Io, format!("{} ended the connection", self.peer_name));
        let mut reading = lock(&self.reading);
        loop {
            let mut answers = Vec::new();
            let mut frames = 0;
            while let Some(frame) = reading.decoder.take()? {
                frames += 1;
                answers.extend(self.handle(frame)?);
            }
            if frames > 0 {
                return Ok(answers);
            }
            let slice = limit.slice().map_or(READ_TIMEOUT, |slice| slice.min(READ_TIMEOUT));
            if slice.is_zero() {
                return Ok(answers);
            }
            let timeout = Some(slice);
            if reading.timeout != timeout {
                let set = self.socket.set_read_timeout(timeout);
                set.map_err(|error| Error::io("setting a socket's timeout", &error))?;
                reading.timeout = timeout;
            }
            let Reading { decoder, busy_poll, .. } = &mut *reading;
            match decoder.fill_polling(self.socket.as_fd(), busy_poll) {
                Ok(0) => return Err(ended()),
                Ok(_) => {}
                Err(error) => match error.kind() {
                    std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted => return Ok(answers),
                    std::io::ErrorKind::ConnectionReset => return Err(ended()),
                    _ => return Err(Error::io(format!("reading from {}", self.peer_name), &error)),
                },
            }
        }
    }

    fn timeout_error(&self) -> Error {
        Error::new(ErrorKind::TimedOut, format!("{} did not answer in time", self.peer_name))
    }

    /// Returns an answer. Passes a notification to its handler.
    fn handle(&self, frame: Frame) -> Result<Option<(u64, Answer)>> {
        match parse_incoming(&frame.body)? {
            Incoming::Response(response) => match response.id.as_u64() {
                Some(id) => Ok(Some((id, Answer { response, fds: frame.fds, further: Vec::new() }))),
                None => {
                    Err(response.outcome().err().unwrap_or_else(|| Error::corrupt("an answer without an integer id")))
                }
            },
            Incoming::Batch(mut responses) => {
                // The first call of a batch has the lowest number, by which the caller waits.
                let first = responses.iter().filter_map(|response| response.id.as_u64()).min();
                let id = first.ok_or_else(|| Error::corrupt("a batch of answers without an integer id"))?;
                let further = responses.split_off(1);
                Ok(responses.pop().map(|response| (id, Answer { response, fds: frame.fds, further })))
            }
            Incoming::Notification { method, params } => {
                (self.on_notification)(&method, &params, frame.fds);
                Ok(None)
            }
        }
    }
}

#[cfg(test)]
mod tests;
