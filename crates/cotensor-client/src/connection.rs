//! One connection, many callers: whoever waits reads, for the others too, so that an answer wakes nobody in between.

use crate::protocol::Method;
use crate::wire::rpc::{self, Said};
use crate::wire::{Decoder, Frame, Spin, send_all};
use cotensor_core::{Error, ErrorKind, Result};
use jsonrpsee_types::Id;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::socket_peercred;
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long to look for the daemon's answer before sleeping: most come sooner.
const SPIN: Duration = Duration::from_micros(40);
/// One wait for something to read; longer waits are several.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// The same for whoever may change their mind: a signal that another thread got is noticed after that.
const IMPATIENCE: Duration = Duration::from_millis(50);

/// Called with the method, the parameters and the descriptors of what the other end says unasked.
pub type OnNotice = Box<dyn Fn(&str, &RawValue, Vec<OwnedFd>) + Send + Sync>;

/// A connection to a daemon. All methods may be called from any thread.
pub struct Connection {
    socket: UnixStream,
    sending: Mutex<()>,
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

pub(crate) struct Answer {
    pub(crate) response: rpc::Response,
    pub(crate) fds: Vec<OwnedFd>,
}

/// Calls that one thread waits for, whichever is answered first.
#[derive(Default)]
pub(crate) struct Group {
    arrived: Mutex<Vec<(u64, Answer)>>,
}

impl Group {
    fn take(&self) -> Vec<(u64, Answer)> {
        std::mem::take(&mut *lock(&self.arrived))
    }
}

/// A call that was sent, and whose answer somebody has to take: it could carry a lease.
#[must_use]
pub(crate) struct Asked<'a> {
    connection: &'a Connection,
    id: u64,
    deadline: Option<Instant>,
}

impl Asked<'_> {
    /// Waits for the answer.
    ///
    /// # Errors
    /// `Io` when the connection ends; `TimedOut` when the time is over, which ends it.
    pub(crate) fn wait(self) -> Result<Answer> {
        let answer = self.connection.wait(self.id, None, self.deadline, None)?;
        answer.ok_or_else(|| Error::corrupt("an answer was lost"))
    }

    /// Waits for the answer while `wanted` says so; it is asked now and then, and after signals. Once it says no, the number
    /// of the call, for [`Connection::resume`].
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub(crate) fn wait_while(self, wanted: &dyn Fn() -> bool) -> Result<std::result::Result<Answer, u64>> {
        Ok(self.connection.wait(self.id, None, self.deadline, Some(wanted))?.ok_or(self.id))
    }
}

impl Connection {
    /// Connects to the daemon at `socket`.
    ///
    /// # Errors
    /// `NotFound` when nothing listens there, `Refused` when it is another user's, else `Io`.
    pub fn open(socket: &Path, on_notice: OnNotice) -> Result<Self> {
        let stream = UnixStream::connect(socket).map_err(|error| {
            let kind = match error.kind() {
                std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => ErrorKind::NotFound,
                _ => ErrorKind::Io,
            };
            Error::new(kind, format!("no daemon answers here ({error}); `cotensor serve` starts one")).in_file(socket)
        })?;
        let peer = socket_peercred(&stream).map_err(|error| Error::io("looking at the daemon", &error.into()))?;
        if peer.uid != rustix::process::geteuid() {
            return Err(Error::new(ErrorKind::Refused, "the daemon here is another user's").in_file(socket));
        }
        Ok(Self::over(stream, on_notice))
    }

    /// A connection over a socket that is connected already.
    pub fn over(socket: UnixStream, on_notice: OnNotice) -> Self {
        Self {
            socket,
            sending: Mutex::default(),
            next_id: AtomicU64::new(1),
            reading: Mutex::new(Reading { decoder: Decoder::default(), spin: Spin::new(SPIN), wait: None }),
            inbox: Mutex::default(),
            arrived: Condvar::new(),
            on_notice,
        }
    }

    /// Whoever waits for an answer looks for it for `moment` before sleeping, as long as that pays.
    pub(crate) fn looking_for(mut self, moment: Duration) -> Self {
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
        let value = response.outcome()?;
        let value = serde_json::from_str(value.get())
            .map_err(|error| Error::corrupt(format!("the answer to {}: {error}", M::NAME)))?;
        Ok((value, fds))
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
        let Answer { response, fds } = self.ask::<M>(params, fds, timeout)?.wait()?;
        Ok((response, fds))
    }

    /// Sends a call. Its answer is waited for by what this returns.
    ///
    /// # Errors
    /// As [`request`](Self::request), but for what happens while waiting.
    pub(crate) fn ask<M: Method>(
        &self,
        params: &M::Params,
        fds: Vec<OwnedFd>,
        timeout: Option<Duration>,
    ) -> Result<Asked<'_>> {
        let id = self.sent::<M>(params, fds, None)?;
        // A time beyond what the clock counts is no limit.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        Ok(Asked { connection: self, id, deadline })
    }

    /// Sends a call whose answer [`wait_for`](Self::wait_for) gives, with those of the group's others. The call's number.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub(crate) fn ask_into<M: Method>(&self, params: &M::Params, group: &Arc<Group>) -> Result<u64> {
        self.sent::<M>(params, Vec::new(), Some(group))
    }

    /// Waits until calls of the group are answered, or while `wanted` says so, which is asked now and then.
    ///
    /// # Errors
    /// `Io` when the connection ends, and nothing is left to give.
    pub(crate) fn wait_for(&self, group: &Group, wanted: &dyn Fn() -> bool) -> Result<Vec<(u64, Answer)>> {
        // No call has the number 0.
        let waited = self.wait(0, Some(group), None, Some(wanted));
        let arrived = group.take();
        if arrived.is_empty() {
            waited?;
        }
        Ok(arrived)
    }

    fn sent<M: Method>(&self, params: &M::Params, fds: Vec<OwnedFd>, group: Option<&Arc<Group>>) -> Result<u64> {
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
        if let Err(error) = self.send(Frame { body, fds }) {
            let mut inbox = lock(&self.inbox);
            inbox.calls.remove(&id);
            inbox.grouped.remove(&id);
            // Half a message may be gone: nothing can follow it.
            if error.kind() == ErrorKind::Io {
                inbox.closed.get_or_insert_with(|| error.clone());
            }
            return Err(error);
        }
        Ok(id)
    }

    /// Goes on waiting for the answer to a call that [`Asked::wait_while`] gave up.
    pub(crate) fn resume(&self, id: u64) -> Asked<'_> {
        Asked { connection: self, id, deadline: None }
    }

    /// Hears what the other end says unasked, until the connection ends. Calls may be made beside it, from other threads.
    ///
    /// Says why it ended.
    pub fn listen(&self) -> Error {
        // No call has the number 0: this waits for an answer that never comes, and so for the end.
        match self.wait(0, None, None, None) {
            Ok(_) => Error::corrupt("an answer to no call"),
            Err(error) => error,
        }
    }

    /// Calls a method without asking for an answer.
    ///
    /// # Errors
    /// `Io` when the connection ended.
    pub fn notify<M: Method>(&self, params: &M::Params) -> Result<()> {
        self.send(Frame::new(rpc::encode_call(None, M::NAME, params)?))
    }

    /// Sends a message as it is.
    ///
    /// # Errors
    /// As [`notify`](Self::notify).
    pub(crate) fn send(&self, frame: Frame) -> Result<()> {
        let _turn = lock(&self.sending);
        send_all(self.socket.as_fd(), &frame)
    }

    /// Ends the connection; whoever waits gets an error.
    pub fn close(&self) {
        lock(&self.inbox).closed.get_or_insert_with(|| Error::new(ErrorKind::Io, "the connection was ended"));
        drop(self.socket.shutdown(Shutdown::Both));
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

    /// Waits for an answer, or until `wanted` says that nobody wants it any more: none then, and the answer can be waited
    /// for again. None as well once something is there for `group`.
    fn wait(
        &self,
        id: u64,
        group: Option<&Group>,
        deadline: Option<Instant>,
        wanted: Option<&dyn Fn() -> bool>,
    ) -> Result<Option<Answer>> {
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
            if inbox.reading {
                inbox.following += 1;
                inbox = self.follow(inbox, deadline, wanted.is_some());
                inbox.following -= 1;
            } else {
                inbox.reading = true;
                drop(inbox);
                let read = self.read(deadline, wanted.is_some());
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
            if let Some(wanted) = wanted
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

    /// Waits while another caller reads; not for long where somebody may change their mind.
    fn follow<'a>(
        &self,
        inbox: MutexGuard<'a, Inbox>,
        deadline: Option<Instant>,
        impatient: bool,
    ) -> MutexGuard<'a, Inbox> {
        let now = Instant::now();
        if impatient && deadline.is_none_or(|deadline| now + IMPATIENCE < deadline) {
            let waited = self.arrived.wait_timeout(inbox, IMPATIENCE).unwrap_or_else(PoisonError::into_inner);
            return waited.0;
        }
        let Some(deadline) = deadline else {
            return self.arrived.wait(inbox).unwrap_or_else(PoisonError::into_inner);
        };
        let left = deadline.saturating_duration_since(now);
        let (mut inbox, waited) = self.arrived.wait_timeout(inbox, left).unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            inbox.closed.get_or_insert_with(timed_out);
            drop(self.socket.shutdown(Shutdown::Both));
            self.arrived.notify_all();
        }
        inbox
    }

    /// Reads until at least one frame is there; the answers among them. Where somebody may change their mind, not for long.
    fn read(&self, deadline: Option<Instant>, impatient: bool) -> Result<Vec<(u64, Answer)>> {
        let longest = if impatient { IMPATIENCE } else { WAIT_MAX };
        let ended = || Error::new(ErrorKind::Io, "the daemon ended the connection");
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
            let left = deadline.map_or(longest, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Err(timed_out());
            }
            let wait = Some(left.min(longest));
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
                Err(error)
                    if impatient
                        && matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted) =>
                {
                    return Ok(Vec::new());
                }
                // The next turn sees whether the time is up.
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return Err(ended()),
                Err(error) => return Err(Error::io("reading from the daemon", &error)),
            }
        }
    }

    /// An answer, or a notice, which is heard at once.
    fn sort(&self, frame: Frame) -> Result<Option<(u64, Answer)>> {
        match rpc::hear(&frame.body)? {
            Said::Answer(response) => match response.id {
                Id::Number(id) => Ok(Some((id, Answer { response, fds: frame.fds }))),
                _ => Err(response.outcome().err().unwrap_or_else(|| Error::corrupt("an answer without a number"))),
            },
            Said::Notice { method, params } => {
                (self.on_notice)(&method, &params, frame.fds);
                Ok(None)
            }
        }
    }
}

fn timed_out() -> Error {
    Error::new(ErrorKind::TimedOut, "the daemon did not answer in time")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
