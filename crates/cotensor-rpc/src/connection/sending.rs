//! The sending half of a connection: whole messages, one after the other. No sender waits longer than it wants to, even if
//! the other end does not read.

use crate::frame::{Frame, send};
use cotensor_core::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::SendFlags;
use rustix::time::Timespec;
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::{Duration, Instant};

use super::lock;

/// The longest wait between two checks whether a caller still wants to wait: a signal that another thread got is seen then.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Notices that may wait until the other end reads again. Past that a sender waits for room: a notice that is lost would leave
/// what it gives back with the other end for as long as the connection lasts.
const NOTICES_MAX: usize = 4096;
/// How long that takes at most.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a caller waits: up to a time, and as long as it wants to.
#[derive(Clone, Copy, Default)]
pub struct Until<'a> {
    /// The end of the wait.
    pub deadline: Option<Instant>,
    /// Whether the caller still wants to wait. Called every [`CHECK_INTERVAL`], and after signals.
    pub wanted: Option<&'a dyn Fn() -> bool>,
}

impl Until<'_> {
    /// A wait of at most `timeout`. A time beyond the clock's range is no limit.
    pub(super) fn after(timeout: Option<Duration>) -> Self {
        Self { deadline: timeout.and_then(|timeout| Instant::now().checked_add(timeout)), wanted: None }
    }

    /// Whether the time is over.
    pub fn has_passed(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    pub(super) fn is_over(&self) -> bool {
        self.has_passed() || self.wanted.is_some_and(|wanted| !wanted())
    }

    /// How long to sleep before the next check, if there is a bound.
    pub(super) fn slice(&self) -> Option<Duration> {
        let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        match self.wanted {
            Some(_) => Some(left.map_or(CHECK_INTERVAL, |left| left.min(CHECK_INTERVAL))),
            None => left,
        }
    }
}

#[derive(Default)]
pub(super) struct Sending {
    state: Mutex<State>,
    free: Condvar,
}

#[derive(Default)]
struct State {
    /// Whether a thread writes to the socket.
    busy: bool,
    /// A message whose sender gave up midway, then notices that the socket had no room for. They go before any other message,
    /// and without one as soon as there is room.
    rest: VecDeque<Pending>,
    /// Whether a thread waits for that room.
    draining: bool,
}

struct Pending {
    header: [u8; 8],
    frame: Frame,
    sent: usize,
}

impl Pending {
    fn new(frame: Frame) -> Result<Self> {
        Ok(Self { header: frame.header()?, frame, sent: 0 })
    }

    /// Whether the whole message is sent, which takes no longer than `until`.
    fn write(&mut self, socket: &UnixStream, until: &Until<'_>) -> Result<bool> {
        while self.sent < self.header.len() + self.frame.body.len() {
            match send(socket.as_fd(), &self.header, &self.frame, self.sent, SendFlags::DONTWAIT) {
                Ok(bytes) => self.sent += bytes,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => {
                    return Err(Error::io("sending", &error));
                }
                Err(_) if until.is_over() => return Ok(false),
                Err(_) => {
                    let slice = until.slice().and_then(|slice| Timespec::try_from(slice).ok());
                    match poll(&mut [PollFd::new(socket, PollFlags::OUT)], slice.as_ref()) {
                        Ok(_) | Err(rustix::io::Errno::INTR) => {}
                        Err(error) => return Err(Error::io("waiting to send", &error.into())),
                    }
                }
            }
        }
        Ok(true)
    }
}

impl Sending {
    /// Sends a message; false when it was not begun in time. One that was begun in time is sent: its rest goes before the next.
    ///
    /// # Errors
    /// `Invalid` for a message past the limits, `Io` when the other end is gone.
    pub(super) fn send(self: &Arc<Self>, socket: &Arc<UnixStream>, frame: Frame, until: &Until<'_>) -> Result<bool> {
        let mut pending = Pending::new(frame)?;
        if !self.begin(until) {
            return Ok(false);
        }
        let sent = self.flush(socket, until).and_then(|flushed| Ok(flushed && pending.write(socket, until)?));
        let begun = pending.sent > 0;
        if let Ok(false) = sent
            && begun
        {
            lock(&self.state).rest.push_front(pending);
        }
        self.end(socket);
        Ok(sent? || begun)
    }

    /// Sends a notice, now or once the socket has room. Nobody waits for that, unless many notices do.
    ///
    /// # Errors
    /// As [`send`](Self::send); `Conflict` when too many wait, and the other end reads nothing.
    pub(super) fn notify(self: &Arc<Self>, socket: &Arc<UnixStream>, frame: Frame) -> Result<()> {
        let mut state = lock(&self.state);
        if state.rest.len() >= NOTICES_MAX {
            drop(state);
            return match self.send(socket, frame, &Until::after(Some(PATIENCE)))? {
                true => Ok(()),
                false => Err(Error::new(ErrorKind::Conflict, "the other end reads nothing")),
            };
        }
        state.rest.push_back(Pending::new(frame)?);
        // The thread that writes sends it, too.
        if std::mem::replace(&mut state.busy, true) {
            return Ok(());
        }
        drop(state);
        let flushed = self.flush(socket, &now());
        self.end(socket);
        flushed.map(drop)
    }

    /// Waits for this thread's turn at the socket; false when it is not there in time.
    fn begin(&self, until: &Until<'_>) -> bool {
        let mut state = lock(&self.state);
        while state.busy {
            let slice = until.slice();
            state = match slice {
                Some(slice) => {
                    self.free.wait_timeout(state, slice).unwrap_or_else(std::sync::PoisonError::into_inner).0
                }
                None => self.free.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner),
            };
            if !state.busy {
                break;
            }
            drop(state);
            if until.is_over() {
                return false;
            }
            state = lock(&self.state);
        }
        state.busy = true;
        true
    }

    /// Gives the turn to the next thread, once notices that came meanwhile are sent as far as there is room. What there is no
    /// room for is left to a thread: perhaps nobody sends anything any more.
    fn end(self: &Arc<Self>, socket: &Arc<UnixStream>) {
        loop {
            let flushed = self.flush(socket, &now());
            let mut state = lock(&self.state);
            if matches!(flushed, Ok(true)) && !state.rest.is_empty() {
                continue;
            }
            state.busy = false;
            // What fails here fails for the next sender, too, who can say so.
            let left = matches!(flushed, Ok(false)) && !std::mem::replace(&mut state.draining, true);
            drop(state);
            self.free.notify_one();
            if left {
                self.start_draining(socket);
            }
            return;
        }
    }

    fn start_draining(self: &Arc<Self>, socket: &Arc<UnixStream>) {
        let (sending, socket) = (Arc::downgrade(self), Arc::downgrade(socket));
        let thread = std::thread::Builder::new().name("notices".to_owned());
        // Without a thread it goes before the next message.
        if thread.spawn(move || Self::drain(&sending, &socket)).is_err() {
            lock(&self.state).draining = false;
        }
    }

    /// Sends what waits whenever there is room, until all of it is sent or the connection is gone, which this does not keep.
    fn drain(sending: &Weak<Self>, socket: &Weak<UnixStream>) {
        let slice = Timespec::try_from(CHECK_INTERVAL).ok();
        while let (Some(sending), Some(socket)) = (sending.upgrade(), socket.upgrade()) {
            let polled = poll(&mut [PollFd::new(&socket, PollFlags::OUT)], slice.as_ref());
            // Whoever writes now sends what waits, too.
            let until = Until { deadline: Some(Instant::now() + CHECK_INTERVAL), wanted: None };
            if polled == Ok(0) || !sending.begin(&until) {
                continue;
            }
            let flushed = sending.flush(&socket, &now());
            sending.end(&socket);
            let mut state = lock(&sending.state);
            if flushed.is_err() || state.rest.is_empty() {
                state.draining = false;
                return;
            }
        }
    }

    /// Sends what was left over; whether all of it is gone.
    fn flush(&self, socket: &UnixStream, until: &Until<'_>) -> Result<bool> {
        loop {
            let Some(mut first) = lock(&self.state).rest.pop_front() else { return Ok(true) };
            if !first.write(socket, until)? {
                lock(&self.state).rest.push_front(first);
                return Ok(false);
            }
        }
    }
}

/// No wait at all.
fn now() -> Until<'static> {
    Until { deadline: Some(Instant::now()), wanted: None }
}
