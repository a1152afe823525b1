//! What a session is sent: at once if the socket takes it, else kept up to a bound.

use cotensor_client::wire::{FRAME_FDS_MAX, Frame, send};
use cotensor_core::{Error, ErrorKind, Result};
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::Notify;

/// Bytes that may wait for one reader; a session that does not read what it asks for is ended.
const WAITING_BYTES_MAX: usize = 64 << 20;
/// Frames that may wait.
const WAITING_FRAMES_MAX: usize = 4096;
/// Descriptors that may wait: they count among those that the daemon may have open.
const WAITING_FDS_MAX: usize = 4 * FRAME_FDS_MAX;

/// The sending half of a session's socket.
pub(crate) struct Outgoing {
    socket: Arc<UnixStream>,
    queue: Mutex<Queue>,
    more: Notify,
}

#[derive(Default)]
struct Queue {
    frames: VecDeque<Pending>,
    bytes: usize,
    fds: usize,
    /// Whether too much waited; nothing is kept for this session any more, and [`drain`](Outgoing::drain) ends it.
    overflown: bool,
}

impl Queue {
    /// # Errors
    /// `Conflict` when the session does not read.
    fn check(&self) -> Result<()> {
        match self.overflown {
            false => Ok(()),
            true => Err(Error::new(ErrorKind::Conflict, "the session does not read what it asked for")),
        }
    }
}

struct Pending {
    header: [u8; 8],
    frame: Frame,
    sent: usize,
}

impl Pending {
    fn len(&self) -> usize {
        self.header.len() + self.frame.body.len()
    }
}

impl Outgoing {
    pub(crate) fn new(socket: Arc<UnixStream>) -> Self {
        Self { socket, queue: Mutex::default(), more: Notify::new() }
    }

    /// Sends a frame, or queues what the socket does not take now.
    ///
    /// # Errors
    /// `Io` when the other end is gone, `Conflict` when it has let too much wait: the session is to end.
    pub(crate) fn send(&self, frame: Frame) -> Result<()> {
        let mut pending = Pending { header: frame.header()?, frame, sent: 0 };
        let mut queue = self.lock();
        queue.check()?;
        if queue.frames.is_empty() && self.write(&mut pending)? {
            return Ok(());
        }
        queue.bytes += pending.len();
        queue.fds += pending.frame.fds.len();
        queue.frames.push_back(pending);
        let Queue { frames, bytes, fds, .. } = &*queue;
        if *bytes > WAITING_BYTES_MAX || frames.len() > WAITING_FRAMES_MAX || *fds > WAITING_FDS_MAX {
            // Whoever sends this may be another session, or care for no error: the drain must hear of it.
            *queue = Queue { overflown: true, ..Queue::default() };
        }
        let outcome = queue.check();
        drop(queue);
        self.more.notify_one();
        outcome
    }

    /// Sends what was queued, for as long as the session lives.
    ///
    /// # Errors
    /// `Io` when the other end is gone, `Conflict` when it has let too much wait.
    pub(crate) async fn drain(&self) -> Result<()> {
        loop {
            self.more.notified().await;
            while !self.flush()? {
                tokio::select! {
                    writable = self.socket.writable() => {
                        writable.map_err(|error| Error::io("waiting to send", &error))?;
                    }
                    // More waits than may.
                    () = self.more.notified() => {}
                }
            }
        }
    }

    /// Whether all that was queued is sent.
    fn flush(&self) -> Result<bool> {
        let mut queue = self.lock();
        queue.check()?;
        while let Some(pending) = queue.frames.front_mut() {
            if !self.write(pending)? {
                return Ok(false);
            }
            let (len, fds) = (pending.len(), pending.frame.fds.len());
            queue.bytes -= len;
            queue.fds -= fds;
            queue.frames.pop_front();
        }
        Ok(true)
    }

    /// Whether the whole frame is sent.
    fn write(&self, pending: &mut Pending) -> Result<bool> {
        while pending.sent < pending.len() {
            let Pending { header, frame, sent } = pending;
            let socket = &self.socket;
            match socket.try_io(Interest::WRITABLE, || send(socket.as_fd(), header, frame, *sent)) {
                Ok(bytes) => *sent += bytes,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io("sending to a session", &error)),
            }
        }
        Ok(true)
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
