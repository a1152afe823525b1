//! The send queue of a served connection. A message is sent at once or queued, so no thread waits for a slow reader.

use crate::frame::{FRAME_FDS_MAX, Frame, PartialFrame};
use cotensor_core::sync::lock;
use cotensor_core::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use std::collections::VecDeque;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

/// The most bytes that wait for one reader. A reader that leaves more unread is disconnected.
const WAITING_BYTES_MAX: usize = 64 << 20;
/// The most frames that wait: more than the answers that one caller may wait for.
pub const WAITING_FRAMES_MAX: usize = 32 << 10;
/// The most descriptors that wait, unless the server allows more. They count among the descriptors that this process may have open.
pub const WAITING_FDS_MAX: usize = 4 * FRAME_FDS_MAX;
/// The longest time without progress at the reader.
const SEND_TIMEOUT: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

/// The sending half of a socket. A failure shuts the socket down, and the reading half sees its end.
pub struct Outbox(Arc<OutboxState>);

struct OutboxState {
    socket: Arc<UnixStream>,
    queue: Mutex<Queue>,
    fds_max: usize,
}

#[derive(Default)]
struct Queue {
    frames: VecDeque<PartialFrame>,
    bytes: usize,
    fds: usize,
    /// Whether a limit was passed. The queue stays empty then.
    overflowed: bool,
}

impl Outbox {
    /// A queue that is the only sender on `socket`.
    pub fn new(socket: Arc<UnixStream>) -> Self {
        Self::with_fds_max(socket, WAITING_FDS_MAX)
    }

    /// As [`new`](Self::new). At most `fds_max` descriptors wait.
    pub fn with_fds_max(socket: Arc<UnixStream>, fds_max: usize) -> Self {
        Self(Arc::new(OutboxState { socket, queue: Mutex::default(), fds_max }))
    }

    /// Sends a frame after those before it, without waiting for the reader.
    ///
    /// # Errors
    /// `Invalid` for a frame past the limits, `Io` when the connection has ended, `Conflict` when too much waits to be
    /// read.
    pub fn send(&self, frame: Frame) -> Result<()> {
        let sent = self.0.send(frame).and_then(|begin| if begin { self.start_draining() } else { Ok(()) });
        sent.inspect_err(|_| self.end())
    }

    /// Bytes that wait to be sent.
    pub fn waiting_bytes(&self) -> usize {
        self.0.waiting_bytes()
    }

    /// Sends a frame if the queue is empty and the socket has room for it now. False if not: the frame is dropped then.
    ///
    /// For notifications: a client that reads only while it waits for an answer is not disconnected because of them.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn offer(&self, frame: Frame) -> Result<bool> {
        let offered = self.0.offer(frame).and_then(|offered| match offered {
            Some(true) => self.start_draining().map(|()| true),
            other => Ok(other.is_some()),
        });
        offered.inspect_err(|_| self.end())
    }

    /// Ends the connection.
    pub fn end(&self) {
        let _ = self.0.socket.shutdown(Shutdown::Both);
    }

    /// Starts a thread that sends the queue and ends when it is empty.
    fn start_draining(&self) -> Result<()> {
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
    fn push(&mut self, pending: PartialFrame) {
        self.bytes += pending.len();
        self.fds += pending.fds();
        self.frames.push_back(pending);
    }
}

impl OutboxState {
    /// None without room. Else whether the caller has to start draining the queue, which holds the rest.
    fn offer(&self, frame: Frame) -> Result<Option<bool>> {
        let mut pending = PartialFrame::new(frame)?;
        let mut queue = lock(&self.queue);
        if queue.overflowed || !queue.frames.is_empty() {
            return Ok(None);
        }
        if pending.send_now(&self.socket)? {
            return Ok(Some(false));
        }
        if !pending.has_begun() {
            return Ok(None);
        }
        queue.push(pending);
        Ok(Some(true))
    }

    /// Whether the caller has to start draining the queue.
    fn send(&self, frame: Frame) -> Result<bool> {
        let mut pending = PartialFrame::new(frame)?;
        let mut queue = lock(&self.queue);
        let first = queue.frames.is_empty() && !queue.overflowed;
        if first && pending.send_now(&self.socket)? {
            return Ok(false);
        }
        queue.push(pending);
        let Queue { frames, bytes, fds, overflowed } = &*queue;
        if *overflowed || *bytes > WAITING_BYTES_MAX || frames.len() > WAITING_FRAMES_MAX || *fds > self.fds_max {
            *queue = Queue { overflowed: true, ..Queue::default() };
            return Err(Error::new(ErrorKind::Conflict, "the peer does not read its answers"));
        }
        Ok(first)
    }

    fn waiting_bytes(&self) -> usize {
        lock(&self.queue).bytes
    }

    fn drain(&self) -> Result<()> {
        while !self.flush()? {
            let polled = poll(&mut [PollFd::new(&self.socket, PollFlags::OUT)], Some(&SEND_TIMEOUT));
            match polled {
                Ok(0) => return Err(Error::new(ErrorKind::TimedOut, "the peer reads nothing")),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(Error::io("waiting to send", &error.into())),
            }
        }
        Ok(())
    }

    /// Sends queued frames without blocking. Whether the queue is empty.
    fn flush(&self) -> Result<bool> {
        let mut queue = lock(&self.queue);
        while let Some(pending) = queue.frames.front_mut() {
            if !pending.send_now(&self.socket)? {
                return Ok(false);
            }
            let (len, fds) = (pending.len(), pending.fds());
            queue.bytes -= len;
            queue.fds -= fds;
            queue.frames.pop_front();
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Decoder;
    use std::os::fd::AsFd;

    fn pair() -> (Outbox, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Outbox::new(Arc::new(ours)), theirs)
    }

    #[test]
    fn frames_beyond_the_socket_buffer_arrive_in_order() {
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
    fn waiting_bytes_grow_while_the_reader_does_not_read() {
        let (outbox, reader) = pair();
        assert_eq!(outbox.waiting_bytes(), 0);
        let sent = (1..).find(|_| {
            outbox.send(Frame::new(vec![7; 1 << 20])).unwrap();
            outbox.waiting_bytes() >= 4 << 20
        });
        let mut decoder = Decoder::default();
        let mut received = 0;
        while Some(received) < sent {
            match decoder.take().unwrap() {
                Some(frame) => {
                    assert_eq!(frame.body.len(), 1 << 20);
                    received += 1;
                }
                None => assert!(decoder.fill(reader.as_fd()).unwrap() > 0, "the connection ended"),
            }
        }
    }

    #[test]
    fn offered_frame_is_sent_whole_or_not_at_all() {
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
    fn waiting_descriptors_are_limited() {
        let (ours, _reader) = UnixStream::pair().unwrap();
        let outbox = Outbox::with_fds_max(Arc::new(ours), 10);
        let send = |fds| {
            let fds = (0..fds).map(|_| tempfile::tempfile().unwrap().into()).collect();
            outbox.send(Frame { body: vec![0; 1 << 20], fds })
        };
        // The first frame is on its way.
        send(0).unwrap();
        (0..5).for_each(|_| send(2).unwrap());
        assert_eq!(send(1).unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(lock(&outbox.0.queue).fds, 0, "the queue is dropped");
    }

    #[test]
    fn reader_that_does_not_read_is_disconnected() {
        let (outbox, reader) = pair();
        let refused = (0..WAITING_FRAMES_MAX * 20).find_map(|_| outbox.send(Frame::new(vec![0; 200_000])).err());
        assert_eq!(refused.unwrap().kind(), ErrorKind::Conflict);
        assert_eq!(lock(&outbox.0.queue).bytes, 0, "the queue is dropped");
        assert_eq!(outbox.send(Frame::new(Vec::new())).unwrap_err().kind(), ErrorKind::Conflict);
        let mut decoder = Decoder::default();
        while decoder.fill(reader.as_fd()).unwrap() > 0 {}
    }
}
