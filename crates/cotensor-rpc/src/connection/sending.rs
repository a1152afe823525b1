//! The sending half of a connection: whole messages, one after the other. Each sender has a wait limit, also while the
//! peer does not read.

use super::wait_limit::{CHECK_INTERVAL, WaitLimit};
use crate::frame::{Frame, PartialFrame};
use cotensor_core::sync::{lock, wait, wait_timeout};
use cotensor_core::waiting::{WaitReport, Waiting};
use cotensor_core::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use std::collections::VecDeque;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::Duration;

/// The most notifications that wait for the peer to read. Beyond that, the sender waits: a lost notification would
/// leave the memory that it returns with the peer until the connection ends.
pub(super) const NOTIFICATIONS_MAX: usize = 4096;
/// The longest such wait.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Default)]
pub(super) struct Sending {
    state: Mutex<SendState>,
    free: Condvar,
}

#[derive(Default)]
struct SendState {
    /// Whether a thread writes to the socket.
    busy: bool,
    /// The rest of a message whose sender stopped waiting midway, then notifications that the socket had no room for.
    /// They precede any other message, and without one they are sent as soon as there is room.
    unsent: VecDeque<PartialFrame>,
    /// Whether a thread sends `unsent`.
    draining: bool,
}

impl Sending {
    /// Sends a message. False when none of it was sent in time. Once a part is sent, the rest follows before the next
    /// message.
    ///
    /// # Errors
    /// `Invalid` for a message past the limits, `Io` when the connection has ended.
    pub(super) fn send(
        self: &Arc<Self>,
        socket: &Arc<UnixStream>,
        frame: Frame,
        limit: &WaitLimit<'_>,
    ) -> Result<bool> {
        let mut pending = PartialFrame::new(frame)?;
        if !self.begin(limit) {
            return Ok(false);
        }
        let sent = self.flush(socket, limit).and_then(|flushed| Ok(flushed && write(&mut pending, socket, limit)?));
        let begun = pending.has_begun();
        if let Ok(false) = sent
            && begun
        {
            lock(&self.state).unsent.push_front(pending);
        }
        self.end(socket);
        Ok(sent? || begun)
    }

    /// Sends a notification, now or once the socket has room. Waits only while too many notifications do; `describe` reports that.
    ///
    /// # Errors
    /// As [`send`](Self::send); `Conflict` when too many wait and the peer reads nothing.
    pub(super) fn notify(
        self: &Arc<Self>,
        socket: &Arc<UnixStream>,
        frame: Frame,
        describe: &dyn Fn() -> WaitReport,
    ) -> Result<()> {
        let mut state = lock(&self.state);
        if state.unsent.len() >= NOTIFICATIONS_MAX {
            drop(state);
            let waiting = Waiting::new(describe);
            return if self.send(socket, frame, &WaitLimit::after(Some(NOTIFY_TIMEOUT)).reported(&waiting))? {
                Ok(())
            } else {
                Err(Error::new(ErrorKind::Conflict, "the peer reads nothing"))
            };
        }
        state.unsent.push_back(PartialFrame::new(frame)?);
        // The thread that writes sends it as well.
        if std::mem::replace(&mut state.busy, true) {
            return Ok(());
        }
        drop(state);
        let flushed = self.flush(socket, &WaitLimit::now());
        self.end(socket);
        flushed.map(drop)
    }

    #[cfg(test)]
    pub(super) fn queued(&self) -> usize {
        lock(&self.state).unsent.len()
    }

    /// Waits for the exclusive right to write to the socket. False when another thread has it for too long.
    fn begin(&self, limit: &WaitLimit<'_>) -> bool {
        let mut state = lock(&self.state);
        while state.busy {
            state = match limit.reported_slice() {
                Some(slice) => wait_timeout(&self.free, state, slice).0,
                None => wait(&self.free, state),
            };
            if !state.busy {
                break;
            }
            drop(state);
            limit.check_report();
            if limit.is_over() {
                return false;
            }
            state = lock(&self.state);
        }
        state.busy = true;
        true
    }

    /// Returns the right to write, after sending the notifications that were queued meanwhile. If the socket has no
    /// room for them, a thread sends them later: another message may never follow.
    fn end(self: &Arc<Self>, socket: &Arc<UnixStream>) {
        loop {
            let flushed = self.flush(socket, &WaitLimit::now());
            let mut state = lock(&self.state);
            if matches!(flushed, Ok(true)) && !state.unsent.is_empty() {
                continue;
            }
            state.busy = false;
            // A failure repeats for the next sender, which reports it.
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
        let thread = std::thread::Builder::new().name("notifications".to_owned());
        // Without a thread, the notifications precede the next message.
        if thread.spawn(move || Self::drain(&sending, &socket)).is_err() {
            lock(&self.state).draining = false;
        }
    }

    /// Sends `unsent` whenever the socket has room, until it is empty or the connection is dropped. Holds weak
    /// references only.
    fn drain(sending: &Weak<Self>, socket: &Weak<UnixStream>) {
        let slice = Timespec::try_from(CHECK_INTERVAL).ok();
        while let (Some(sending), Some(socket)) = (sending.upgrade(), socket.upgrade()) {
            let polled = poll(&mut [PollFd::new(&socket, PollFlags::OUT)], slice.as_ref());
            // A thread that writes at the moment sends `unsent` as well.
            let limit = WaitLimit::after(Some(CHECK_INTERVAL));
            if polled == Ok(0) || !sending.begin(&limit) {
                continue;
            }
            let flushed = sending.flush(&socket, &WaitLimit::now());
            sending.end(&socket);
            let mut state = lock(&sending.state);
            if flushed.is_err() || state.unsent.is_empty() {
                state.draining = false;
                return;
            }
        }
    }

    /// Sends `unsent`. Whether it is empty.
    fn flush(&self, socket: &UnixStream, limit: &WaitLimit<'_>) -> Result<bool> {
        loop {
            let Some(mut first) = lock(&self.state).unsent.pop_front() else { return Ok(true) };
            if !write(&mut first, socket, limit)? {
                lock(&self.state).unsent.push_front(first);
                return Ok(false);
            }
        }
    }
}

/// Sends a frame within `limit`. Whether all of it is sent.
fn write(frame: &mut PartialFrame, socket: &UnixStream, limit: &WaitLimit<'_>) -> Result<bool> {
    while !frame.send_now(socket)? {
        limit.check_report();
        if limit.is_over() {
            return Ok(false);
        }
        let slice = limit.reported_slice().and_then(|slice| Timespec::try_from(slice).ok());
        match poll(&mut [PollFd::new(socket, PollFlags::OUT)], slice.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::io("waiting to send", &error.into())),
        }
    }
    Ok(true)
}
