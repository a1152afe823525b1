//! One connection, many callers: a caller that waits reads for the others, too, so that an answer wakes no thread in between.

mod sending;

mod deadline;

pub use deadline::{Deadline, millis};
pub use sending::Until;

use crate as rpc;
use crate::busy_poll::Spin;
use crate::frame::{Decoder, Frame};
use crate::message::Said;
use crate::method::Method;
use cotensor_core::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, poll};
use sending::Sending;
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long to look for the daemon's answer before sleeping: most come sooner.
const SPIN: Duration = Duration::from_micros(40);
/// One wait for something to read; longer waits are several.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Called with the method, the parameters and the descriptors of what the other end says unasked.
pub type OnNotice = Box<dyn Fn(&str, &RawValue, Vec<OwnedFd>) + Send + Sync>;

/// A connection to a daemon. All methods may be called from any thread.
pub struct Connection {
    socket: Arc<UnixStream>,
    /// The other end, for error messages.
    other: String,
    sending: Arc<Sending>,
    next_id: AtomicU64,
    reading: Mutex<Reading>,
    inbox: Mutex<Inbox>,
    arrived: Condvar,
    on_notice: OnNotice,
}

struct Reading {
    decoder: Decoder,
    spin: Spin,
    /// How long the socket waits for something to read; setting it costs a call of the system.
    wait: Option<Duration>,
}

#[derive(Default)]
struct Inbox {
    /// Calls that wait, and their answers once those are there.
    calls: HashMap<u64, Option<Answer>>,
    /// Calls whose answers go to a group.
    grouped: HashMap<u64, Arc<Group>>,
    /// Whether one of the callers is reading.
    reading: bool,
    /// How many wait for it.
    following: usize,
    /// Why nothing comes any more.
    closed: Option<Error>,
}

/// What came back for a call.
pub struct Answer {
    /// The result, or the error.
    pub response: rpc::Response,
    /// The descriptors that came with it.
    pub fds: Vec<OwnedFd>,
}

/// Calls that one thread waits for, whichever is answered first.
#[derive(Default)]
pub struct Group {
    arrived: Mutex<Vec<(u64, Answer)>>,
}

impl Group {
    fn take(&self) -> Vec<(u64, Answer)> {
        std::mem::take(&mut *lock(&self.arrived))
    }
}

/// A call that was sent. Its answer has to be taken: it could carry a lease.
#[must_use]
pub struct Asked<'a> {
    connection: &'a Connection,
    id: u64,
}

impl Asked<'_> {
    /// Waits for the answer, until then. After that, the number of the call: for
    /// [`Connection::abandon`].
    ///
    /// # Errors
    /// `Io` when the connection ends.
    pub fn wait(self, until: &Until<'_>) -> Result<std::result::Result<Answer, u64>> {
        Ok(self.connection.wait(self.id, None, until)?.ok_or(self.id))
    }
}

impl Connection {
    /// A connection over a socket that is connected already.
    pub fn over(socket: UnixStream, on_notice: OnNotice) -> Self {
        Self {
            socket: Arc::new(socket),
            other: "the daemon".to_owned(),
            sending: Arc::default(),
            next_id: AtomicU64::new(1),
            reading: Mutex::new(Reading { decoder: Decoder::default(), spin: Spin::new(SPIN), wait: None }),
            inbox: Mutex::default(),
            arrived: Condvar::new(),
            on_notice,
        }
    }

    /// The other end's name, for error messages.
    pub fn named(mut self, other: &str) -> Self {
        other.clone_into(&mut self.other);
        self
    }

    /// Whoever waits for an answer looks for it for `moment` before sleeping, as long as that pays.
    pub fn looking_for(mut self, moment: Duration) -> Self {
        self.reading.get_mut().unwrap_or_else(PoisonError::into_inner).spin = Spin::new(moment);
        self
    }

    /// Calls a method, with descriptors, and waits for its result and the descriptors with that.
    ///
    /// # Errors
    /// The daemon's error; `Io` when the connection ends; `TimedOut` past `timeout`, which ends the connection: an
    /// answer that nobody takes could carry a lease.
    pub fn call<M: Method>(
        &self,
        params: &M::Params,
        fds: Vec<OwnedFd>,
        timeout: Option<Duration>,
    ) -> Result<(M::Result, Vec<OwnedFd>)> {
        let (response, fds) = self.request::<M>(params, fds, timeout)?;
        Ok((result_of::<M>(response)?, fds))
    }

    /// As [`call`](Self::call), for an answer that carries no lease: one that does not come within `timeout` is dropped when
    /// it comes, and the connection goes on.
    pub fn call_or_forget<M: Method>(
        &self,
        params: &M::Params,
        timeout: Duration,
    ) -> Result<(M::Result, Vec<OwnedFd>)> {
        let until = Until::after(Some(timeout));
        match self.ask::<M>(params, Vec::new(), &until)?.wait(&until)? {
            Ok(Answer { response, fds }) => Ok((result_of::<M>(response)?, fds)),
            Err(id) => {
                drop(lock(&self.inbox).calls.remove(&id));
                Err(self.late())
            }
        }
    }

    /// As [`call`](Self::call), with the answer as it came: for methods whose errors say more than the daemon's do.
    ///
    /// # Errors
    /// As [`call`](Self::call), without the other end's own error.
    pub fn request<M: Method>(
        &self,
        params: &M::Params,
        fds: Vec<OwnedFd>,
        timeout: Option<Duration>,
    ) -> Result<(rpc::Response, Vec<OwnedFd>)> {
        let until = Until::after(timeout);
        match self.ask::<M>(params, fds, &until)?.wait(&until)? {
            Ok(Answer { response, fds }) => Ok((response, fds)),
            Err(_) => {
                let error = self.late();
                self.end(error.clone());
                Err(error)
            }
        }
    }

    /// Sends a call. Its answer is waited for by what this returns.
    ///
    /// # Errors
    /// `Invalid` for a message past the limits; `Io` when the connection ends; `TimedOut`, or `Conflict` when it is not wanted
    /// any more, for a message that was not begun in time, and will not be sent.
    pub fn ask<M: Method>(&self, params: &M::Params, fds: Vec<OwnedFd>, until: &Until<'_>) -> Result<Asked<'_>> {
        Ok(Asked { connection: self, id: self.sent::<M>(params, fds, None, until)? })
    }

    /// Sends a call whose answer [`wait_for`](Self::wait_for) gives, with those of the group's others. The call's number.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub fn ask_into<M: Method>(&self, params: &M::Params, group: &Arc<Group>, until: &Until<'_>) -> Result<u64> {
        self.sent::<M>(params, Vec::new(), Some(group), until)
    }

    /// The answer to a call goes to `group` from now on; false where it has gone to the call's own group already.
    pub fn abandon(&self, id: u64, group: &Arc<Group>) -> bool {
        let mut inbox = lock(&self.inbox);
        match (inbox.calls.remove(&id), inbox.grouped.remove(&id)) {
            (Some(Some(answer)), _) => lock(&group.arrived).push((id, answer)),
            (None, None) => return false,
            _ => drop(inbox.grouped.insert(id, Arc::clone(group))),
        }
        drop(inbox);
        self.arrived.notify_all();
        true
    }

    /// Waits until calls of the group are answered, or until then.
    ///
    /// # Errors
    /// `Io` when the connection ends, and nothing is left to give.
    pub fn wait_for(&self, group: &Group, until: &Until<'_>) -> Result<Vec<(u64, Answer)>> {
        // No call has the number 0.
        let waited = self.wait(0, Some(group), until);
        let arrived = group.take();
        if arrived.is_empty() {
            waited?;
        }
        Ok(arrived)
    }

    fn sent<M: Method>(
        &self,
        params: &M::Params,
        fds: Vec<OwnedFd>,
        group: Option<&Arc<Group>>,
        until: &Until<'_>,
    ) -> Result<u64> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let body = rpc::encode_call(Some(id), M::NAME, params)?;
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
        let error = match self.sending.send(&self.socket, Frame { body, fds }, until) {
            Ok(true) => return Ok(id),
            Ok(false) if until.has_passed() => self.late(),
            Ok(false) => unwanted(),
            Err(error) => error,
        };
        let mut inbox = lock(&self.inbox);
        inbox.calls.remove(&id);
        inbox.grouped.remove(&id);
        // Half a message may be gone: nothing can follow it.
        if error.kind() == ErrorKind::Io {
            inbox.closed.get_or_insert_with(|| error.clone());
        }
        Err(error)
    }

    /// Hears what the other end says unasked, until the connection ends. Calls may be made beside it, from other threads.
    ///
    /// Says why it ended.
    pub fn listen(&self) -> Error {
        // No call has the number 0: this waits for an answer that never comes, and so for the end.
        match self.wait(0, None, &Until::default()) {
            Ok(_) => Error::corrupt("an answer to no call"),
            Err(error) => error,
        }
    }

    /// Calls a method without asking for an answer. Where the socket has no room, the message goes once it has; this waits only
    /// where thousands of such messages do.
    ///
    /// # Errors
    /// `Io` when the connection ended, `Conflict` when the other end does not read for so long that this ends it: what the
    /// message would have given back goes with the connection.
    pub fn notify<M: Method>(&self, params: &M::Params) -> Result<()> {
        self.say(Frame::new(rpc::encode_call(None, M::NAME, params)?))
    }

    /// As [`notify`](Self::notify), of a message that is written already.
    pub fn say(&self, frame: Frame) -> Result<()> {
        self.sending.notify(&self.socket, frame).inspect_err(|error| {
            if error.kind() == ErrorKind::Conflict {
                self.end(error.clone());
            }
        })
    }

    /// Ends the connection; whoever waits gets an error.
    pub fn close(&self) {
        self.end(Error::new(ErrorKind::Io, "the connection was ended"));
    }

    fn end(&self, why: Error) {
        lock(&self.inbox).closed.get_or_insert(why);
        drop(self.socket.shutdown(Shutdown::Both));
        self.arrived.notify_all();
    }

    /// Waits until the connection ends, at whichever end.
    pub fn wait_for_end(&self) {
        // Neither data nor an interruption is an end.
        loop {
            let mut ends = [PollFd::new(&self.socket, PollFlags::RDHUP)];
            match poll(&mut ends, None) {
                Ok(_) if !ends[0].revents().is_empty() => return,
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    /// Why the connection ended, if it did and anybody noticed.
    pub fn closed(&self) -> Option<Error> {
        lock(&self.inbox).closed.clone()
    }

    /// Whether the connection ended, also when nobody reads and so nobody was told.
    pub fn has_ended(&self) -> bool {
        let mut state = [PollFd::new(&self.socket, PollFlags::empty())];
        let polled = poll(&mut state, Some(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 }));
        let hung_up = state[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL);
        self.closed().is_some() || (polled.is_ok() && hung_up)
    }

    /// Waits for an answer. None when the wait is over: the answer can be waited for again. None as well once something is
    /// there for `group`.
    fn wait(&self, id: u64, group: Option<&Group>, until: &Until<'_>) -> Result<Option<Answer>> {
        let mut inbox = lock(&self.inbox);
        loop {
            if group.is_some_and(|group| !lock(&group.arrived).is_empty()) {
                return Ok(None);
            }
            if inbox.calls.get(&id).is_some_and(Option::is_some) {
                let answer = inbox.calls.remove(&id).flatten();
                return answer.map(Some).ok_or_else(|| Error::corrupt("an answer was lost"));
            }
            if let Some(error) = inbox.closed.clone() {
                inbox.calls.remove(&id);
                return Err(error);
            }
            if until.has_passed() {
                return Ok(None);
            }
            if inbox.reading {
                inbox.following += 1;
                inbox = self.follow(inbox, until);
                inbox.following -= 1;
            } else {
                inbox.reading = true;
                drop(inbox);
                let read = self.read(until);
                inbox = lock(&self.inbox);
                inbox.reading = false;
                match read {
                    Ok(answers) => {
                        for (id, answer) in answers {
                            // Nobody waits any more for an answer that nobody asked for.
                            if let Some(place) = inbox.calls.get_mut(&id) {
                                *place = Some(answer);
                            } else if let Some(group) = inbox.grouped.remove(&id) {
                                lock(&group.arrived).push((id, answer));
                            }
                        }
                    }
                    Err(error) => {
                        inbox.closed.get_or_insert(error);
                        // Whatever the session holds is given back at once.
                        drop(self.socket.shutdown(Shutdown::Both));
                    }
                }
                if inbox.following > 0 {
                    self.arrived.notify_all();
                }
            }
            if let Some(wanted) = until.wanted
                && !inbox.calls.get(&id).is_some_and(Option::is_some)
                && inbox.closed.is_none()
            {
                // It may take locks of its own.
                drop(inbox);
                if !wanted() {
                    return Ok(None);
                }
                inbox = lock(&self.inbox);
            }
        }
    }

    /// Waits while another caller reads.
    fn follow<'a>(&self, inbox: MutexGuard<'a, Inbox>, until: &Until<'_>) -> MutexGuard<'a, Inbox> {
        match until.slice() {
            Some(slice) => self.arrived.wait_timeout(inbox, slice).unwrap_or_else(PoisonError::into_inner).0,
            None => self.arrived.wait(inbox).unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Reads until at least one frame is there, or it is time to see whether the wait is over; the answers among them.
    fn read(&self, until: &Until<'_>) -> Result<Vec<(u64, Answer)>> {
        let ended = || Error::new(ErrorKind::Io, format!("{} ended the connection", self.other));
        let mut reading = lock(&self.reading);
        loop {
            let mut answers = Vec::new();
            let mut frames = 0;
            while let Some(frame) = reading.decoder.take()? {
                frames += 1;
                answers.extend(self.sort(frame)?);
            }
            if frames > 0 {
                return Ok(answers);
            }
            let slice = until.slice().map_or(WAIT_MAX, |slice| slice.min(WAIT_MAX));
            if slice.is_zero() {
                return Ok(answers);
            }
            let wait = Some(slice);
            if reading.wait != wait {
                self.socket.set_read_timeout(wait).map_err(|error| Error::io("setting a socket up", &error))?;
                reading.wait = wait;
            }
            let Reading { decoder, spin, .. } = &mut *reading;
            let found = spin.until_found(|| match decoder.fill_now(self.socket.as_fd()) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => None,
                found => Some(found),
            });
            match found.unwrap_or_else(|| decoder.fill(self.socket.as_fd())) {
                Ok(0) => return Err(ended()),
                Ok(_) => {}
                Err(error) => match error.kind() {
                    std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted => return Ok(answers),
                    std::io::ErrorKind::ConnectionReset => return Err(ended()),
                    _ => return Err(Error::io(format!("reading from {}", self.other), &error)),
                },
            }
        }
    }

    fn late(&self) -> Error {
        Error::new(ErrorKind::TimedOut, format!("{} did not answer in time", self.other))
    }

    /// An answer, or a notice, which is heard at once.
    fn sort(&self, frame: Frame) -> Result<Option<(u64, Answer)>> {
        match rpc::hear(&frame.body)? {
            Said::Answer(response) => match response.id.as_u64() {
                Some(id) => Ok(Some((id, Answer { response, fds: frame.fds }))),
                None => Err(response.outcome().err().unwrap_or_else(|| Error::corrupt("an answer without a number"))),
            },
            Said::Notice { method, params } => {
                (self.on_notice)(&method, &params, frame.fds);
                Ok(None)
            }
        }
    }
}

fn result_of<M: Method>(response: rpc::Response) -> Result<M::Result> {
    let value = response.outcome()?;
    serde_json::from_str(value.get()).map_err(|error| Error::corrupt(format!("the answer to {}: {error}", M::NAME)))
}

/// The error of a call whose caller gave it up.
pub fn unwanted() -> Error {
    Error::new(ErrorKind::Conflict, "nobody waits for it any more")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
