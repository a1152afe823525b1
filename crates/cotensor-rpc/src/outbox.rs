//! What one end is sent: at once if the socket takes it, else kept up to a bound, so that nobody waits for a slow reader.

use crate::frame::{FRAME_FDS_MAX, Frame, send};
use cotensor_core::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::SendFlags;
use rustix::time::Timespec;
use std::collections::VecDeque;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that may wait for a reader; one that does not read what it asks for is left.
const WAITING_BYTES_MAX: usize = 64 << 20;
/// Frames that may wait: more than the answers that one caller may wait for.
pub const WAITING_FRAMES_MAX: usize = 32 << 10;
/// Descriptors that may wait: they count among those that this process may have open.
const WAITING_FDS_MAX: usize = 4 * FRAME_FDS_MAX;
/// How long a reader may take nothing of what waits for it.
const PATIENCE: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

/// The sending half of a socket. Whatever goes wrong ends the connection, which its reader sees.
pub struct Outbox(Arc<Inner>);

struct Inner {
    socket: Arc<UnixStream>,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    frames: VecDeque<Pending>,
    bytes: usize,
    fds: usize,
    /// Whether too much waited: nothing is kept for this reader any more.
    overflown: bool,
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

impl Outbox {
    /// What is sent on `socket`, by this alone.
    pub fn new(socket: Arc<UnixStream>) -> Self {
        Self(Arc::new(Inner { socket, queue: Mutex::default() }))
    }

    /// Sends a frame after those before it, without waiting for the reader.
    ///
    /// # Errors
    /// `Invalid` for a frame past the limits, `Io` when the reader is gone, `Conflict` when it lets too much wait.
    pub fn send(&self, frame: Frame) -> Result<()> {
        let sent = self.0.send(frame).and_then(|begin| if begin { self.begin() } else { Ok(()) });
        sent.inspect_err(|_| self.end())
    }

    /// As [`send`](Self::send), unless more than `waiting_max` bytes would wait; whether it did. A frame that nothing waits
    /// before is always sent.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_within(&self, frame: Frame, waiting_max: usize) -> Result<bool> {
        let frame_bytes = frame.body.len();
        let sent = match self.0.waiting() {
            0 => self.send(frame),
            waiting if waiting + frame_bytes <= waiting_max => self.send(frame),
            _ => return Ok(false),
        };
        sent.map(|()| true)
    }

    /// Sends a frame if nothing waits and the socket has room for it now; whether it did. Nothing is kept of one that it
    /// has no room for, so that a reader who reads only when it asks for something is not left for what it did not ask for.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn offer(&self, frame: Frame) -> Result<bool> {
        let offered = self.0.offer(frame).and_then(|offered| match offered {
            Some(true) => self.begin().map(|()| true),
            other => Ok(other.is_some()),
        });
        offered.inspect_err(|_| self.end())
    }

    /// Ends the connection.
    pub fn end(&self) {
        // One that is gone has ended.
        drop(self.0.socket.shutdown(Shutdown::Both));
    }

    /// Sends what waits on a thread of its own, which ends when nothing does.
    fn begin(&self) -> Result<()> {
        let waiting = Self(Arc::clone(&self.0));
        let thread = std::thread::Builder::new().name("outbox".to_owned());
        let started = thread.spawn(move || {
            if waiting.0.drain().is_err() {
                waiting.end();
            }
        });
        started.map(drop).map_err(|error| Error::io("starting a thread", &error))
    }
}

impl Queue {
    fn push(&mut self, pending: Pending) {
        self.bytes += pending.len();
        self.fds += pending.frame.fds.len();
        self.frames.push_back(pending);
    }
}

impl Inner {
    /// None without room; else whether somebody has to begin to drain the queue, in which the rest is.
    fn offer(&self, frame: Frame) -> Result<Option<bool>> {
        let mut pending = Pending { header: frame.header()?, frame, sent: 0 };
        let mut queue = self.lock();
        if queue.overflown || !queue.frames.is_empty() {
            return Ok(None);
        }
        if self.write(&mut pending)? {
            return Ok(Some(false));
        }
        if pending.sent == 0 {
            return Ok(None);
        }
        queue.push(pending);
        Ok(Some(true))
    }

    /// Whether somebody has to begin to drain the queue.
    fn send(&self, frame: Frame) -> Result<bool> {
        let mut pending = Pending { header: frame.header()?, frame, sent: 0 };
        let mut queue = self.lock();
        let first = queue.frames.is_empty() && !queue.overflown;
        if first && self.write(&mut pending)? {
            return Ok(false);
        }
        queue.push(pending);
        let Queue { frames, bytes, fds, overflown } = &*queue;
        if *overflown || *bytes > WAITING_BYTES_MAX || frames.len() > WAITING_FRAMES_MAX || *fds > WAITING_FDS_MAX {
            *queue = Queue { overflown: true, ..Queue::default() };
            return Err(Error::new(ErrorKind::Conflict, "the other end does not read what it asked for"));
        }
        Ok(first)
    }

    fn waiting(&self) -> usize {
        self.lock().bytes
    }

    fn drain(&self) -> Result<()> {
        while !self.flush()? {
            let polled = poll(&mut [PollFd::new(&self.socket, PollFlags::OUT)], Some(&PATIENCE));
            match polled {
                Ok(0) => return Err(Error::new(ErrorKind::TimedOut, "the other end reads nothing")),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(Error::io("waiting to send", &error.into())),
            }
        }
        Ok(())
    }

    /// Whether all that was queued is sent.
    fn flush(&self) -> Result<bool> {
        let mut queue = self.lock();
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
            match send(self.socket.as_fd(), header, frame, *sent, SendFlags::DONTWAIT) {
                Ok(bytes) => *sent += bytes,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io("sending", &error)),
            }
        }
        Ok(true)
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Decoder;

    fn pair() -> (Outbox, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Outbox::new(Arc::new(ours)), theirs)
    }

    #[test]
    fn what_the_socket_does_not_take_waits_in_order() {
        let (outbox, reader) = pair();
        for index in 0..200_u8 {
            outbox.send(Frame::new(vec![index; 20_000])).unwrap();
        }
        let mut decoder = Decoder::default();
        for index in 0..200_u8 {
            let frame = loop {
                match decoder.take().unwrap() {
                    Some(frame) => break frame,
                    None => assert!(decoder.fill(reader.as_fd()).unwrap() > 0),
                }
            };
            assert!(frame.body == [index; 20_000], "{index}");
        }
    }

    #[test]
    fn long_frames_are_refused_while_much_waits_and_short_ones_go() {
        let (outbox, reader) = pair();
        let long = || Frame::new(vec![7; 1 << 20]);
        let taken = (0..).find(|_| !outbox.send_within(long(), 4 << 20).unwrap()).unwrap();
        assert!((3..=6).contains(&taken), "{taken} MiB: what waits, and what the socket took");
        assert!(!outbox.send_within(long(), 4 << 20).unwrap());
        outbox.send(Frame::new(b"an error in its place".to_vec())).unwrap();
        let mut decoder = Decoder::default();
        let mut next = || loop {
            match decoder.take().unwrap() {
                Some(frame) => break frame.body,
                None => assert!(decoder.fill(reader.as_fd()).unwrap() > 0, "nobody is left for this"),
            }
        };
        for _ in 0..taken {
            assert_eq!(next().len(), 1 << 20);
        }
        assert_eq!(next(), b"an error in its place");
    }

    #[test]
    fn what_is_offered_is_sent_whole_or_not_at_all() {
        let (outbox, reader) = pair();
        let taken = (0_u32..).find(|index| !outbox.offer(Frame::new(index.to_le_bytes().to_vec())).unwrap()).unwrap();
        assert!(taken > 10 && !outbox.offer(Frame::new(vec![0; 4])).unwrap());
        let mut decoder = Decoder::default();
        let mut next = || loop {
            match decoder.take().unwrap() {
                Some(frame) => break frame.body,
                None => assert!(decoder.fill(reader.as_fd()).unwrap() > 0),
            }
        };
        for index in 0..taken {
            assert_eq!(next(), index.to_le_bytes());
        }
        assert!(outbox.offer(Frame::new(b"again".to_vec())).unwrap());
        assert_eq!(next(), b"again");
    }

    #[test]
    fn who_does_not_read_is_left_and_sees_the_end() {
        let (outbox, reader) = pair();
        let refused = (0..WAITING_FRAMES_MAX * 20).find_map(|_| outbox.send(Frame::new(vec![0; 200_000])).err());
        assert_eq!(refused.unwrap().kind(), ErrorKind::Conflict);
        assert_eq!(outbox.0.lock().bytes, 0, "nothing is kept for it");
        assert_eq!(outbox.send(Frame::default()).unwrap_err().kind(), ErrorKind::Conflict);
        let mut decoder = Decoder::default();
        while decoder.fill(reader.as_fd()).unwrap() > 0 {}
    }
}
