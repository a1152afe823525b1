//! Frames from a socket's bytes and descriptors.

use super::budget::{BudgetShare, FrameBudget};
use super::message::{FRAME_BYTES_MAX, FRAME_FDS_MAX, Frame, HEADER_BYTES};
use crate::busy_poll::BusyPoll;
use cotensor_core::{Error, Result};
use rustix::io::IoSliceMut;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Each decoder's buffer. A longer frame is read into memory of its own.
const BUFFER_BYTES: usize = 64 << 10;
/// Descriptors that may wait for their frames: those of one frame, and those of the next frame, which can arrive with
/// the end of the first.
const FDS_WAITING_MAX: usize = 2 * FRAME_FDS_MAX;

/// Assembles frames from the pieces that a socket delivers.
pub struct Decoder {
    budget: Option<Arc<FrameBudget>>,
    buffer: Vec<u8>,
    /// The received bytes of `buffer` that no frame was made of yet.
    start: usize,
    end: usize,
    long: Option<Long>,
    /// The budget share of the last frame, returned when the next one is taken.
    taken: Option<BudgetShare>,
    fds: VecDeque<OwnedFd>,
    /// Descriptors that count in `budget`.
    fds_held: usize,
    /// Whether the kernel dropped descriptors because this process has no free descriptor numbers.
    lost_fds: bool,
}

/// A frame that does not fit into the buffer. The socket is not read beyond its end.
struct Long {
    /// Empty until the budget has room for it.
    body: Vec<u8>,
    filled: usize,
    len: usize,
    fds: usize,
    taken: Option<BudgetShare>,
}

impl Default for Decoder {
    fn default() -> Self {
        Self::with_budget(None)
    }
}

impl Drop for Decoder {
    fn drop(&mut self) {
        if let Some(budget) = &self.budget {
            budget.hold_fds(self.fds_held, 0);
        }
    }
}

impl Decoder {
    /// A decoder that shares `budget` with others.
    pub fn sharing(budget: Arc<FrameBudget>) -> Self {
        Self::with_budget(Some(budget))
    }

    fn with_budget(budget: Option<Arc<FrameBudget>>) -> Self {
        let (buffer, fds) = (Vec::new(), VecDeque::new());
        Self { budget, buffer, start: 0, end: 0, long: None, taken: None, fds, fds_held: 0, lost_fds: false }
    }

    /// Reads once after [`take`](Self::take) returned none. Returns the number of bytes read, zero at the end of the
    /// connection.
    ///
    /// # Errors
    /// Those of `recvmsg`; `WouldBlock` also while the budget has no room for a long frame; `OutOfMemory` without memory
    /// for it; `InvalidData` for more descriptors than frames may carry.
    pub fn fill(&mut self, socket: BorrowedFd<'_>) -> std::io::Result<usize> {
        self.read(socket, RecvFlags::empty())
    }

    /// As [`fill`](Self::fill), without blocking.
    ///
    /// # Errors
    /// As [`fill`](Self::fill); `WouldBlock` when the socket has no data.
    pub fn fill_now(&mut self, socket: BorrowedFd<'_>) -> std::io::Result<usize> {
        self.read(socket, RecvFlags::DONTWAIT)
    }

    /// As [`fill`](Self::fill), with busy-polling before the thread blocks.
    ///
    /// # Errors
    /// As [`fill`](Self::fill).
    pub fn fill_polling(&mut self, socket: BorrowedFd<'_>, busy_poll: &mut BusyPoll) -> std::io::Result<usize> {
        let polled = busy_poll.poll(|| match self.fill_now(socket) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => None,
            received => Some(received),
        });
        polled.unwrap_or_else(|| self.fill(socket))
    }

    fn read(&mut self, socket: BorrowedFd<'_>, flags: RecvFlags) -> std::io::Result<usize> {
        let invalid = |message: &str| std::io::Error::new(std::io::ErrorKind::InvalidData, message);
        self.make_room(!flags.contains(RecvFlags::DONTWAIT))?;
        let target = match &mut self.long {
            Some(long) => &mut long.body[long.filled..],
            None => &mut self.buffer[self.end..],
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FRAME_FDS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received =
            recvmsg(socket, &mut [IoSliceMut::new(target)], &mut ancillary, flags | RecvFlags::CMSG_CLOEXEC)?;
        match &mut self.long {
            Some(long) => long.filled += received.bytes,
            None => self.end += received.bytes,
        }
        let before = self.fds.len();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                self.fds.extend(fds);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            // The kernel drops descriptors that fit neither the buffer nor the process's limit.
            if self.fds.len() - before >= FRAME_FDS_MAX {
                return Err(invalid("more descriptors than a frame may carry"));
            }
            self.lost_fds = true;
        }
        if self.fds.len() > FDS_WAITING_MAX || !self.count_fds() {
            return Err(invalid("too many descriptors wait for the rest of their messages"));
        }
        Ok(received.bytes)
    }

    /// Prepares memory to read into.
    fn make_room(&mut self, wait: bool) -> std::io::Result<()> {
        if let Some(long) = &mut self.long {
            if long.body.is_empty() {
                if let Some(budget) = &self.budget {
                    let none_yet = || std::io::Error::from(std::io::ErrorKind::WouldBlock);
                    long.taken = Some(budget.take(long.len, wait).ok_or_else(none_yet)?);
                    if !budget.has_room(long.len) {
                        let message = format!("no memory for a message of {} bytes", long.len);
                        return Err(std::io::Error::new(std::io::ErrorKind::OutOfMemory, message));
                    }
                }
                long.body = vec![0; long.len];
                long.filled = self.end - self.start;
                long.body[..long.filled].copy_from_slice(&self.buffer[self.start..self.end]);
                (self.start, self.end) = (0, 0);
            }
            return Ok(());
        }
        self.buffer.resize(BUFFER_BYTES, 0);
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        Ok(())
    }

    /// Counts the waiting descriptors in the budget. False when all decoders together hold too many.
    fn count_fds(&mut self) -> bool {
        let now = self.fds.len();
        let counted = self.budget.as_ref().is_none_or(|budget| budget.hold_fds(self.fds_held, now));
        if counted {
            self.fds_held = now;
        }
        counted
    }

    /// The next frame, if it is complete. Returns the budget share of the frame before it.
    ///
    /// A frame has fewer descriptors than announced when this process has no free descriptor numbers.
    ///
    /// # Errors
    /// `Corrupt` for a header past the limits, and for one that announces descriptors which did not arrive.
    pub fn take(&mut self) -> Result<Option<Frame>> {
        self.release();
        if self.long.is_none() {
            let rest = &self.buffer[self.start..self.end];
            let Some((header, rest)) = rest.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
            let [a, b, c, d, fds, zeros @ ..] = *header;
            let (len, fds) = (u32::from_le_bytes([a, b, c, d]) as usize, usize::from(fds));
            if len > FRAME_BYTES_MAX || fds > FRAME_FDS_MAX || zeros != [0; 3] {
                return Err(Error::corrupt(format!("a frame of {len} bytes and {fds} descriptors")));
            }
            if let Some(body) = rest.get(..len) {
                let body = body.to_vec();
                self.start += HEADER_BYTES + len;
                return self.frame(body, fds).map(Some);
            }
            if HEADER_BYTES + len > BUFFER_BYTES {
                self.start += HEADER_BYTES;
                self.long = Some(Long { body: Vec::new(), filled: 0, len, fds, taken: None });
            }
            return Ok(None);
        }
        match self.long.take_if(|long| long.filled == long.len) {
            Some(Long { body, fds, taken, .. }) => {
                self.taken = taken;
                self.frame(body, fds).map(Some)
            }
            None => Ok(None),
        }
    }

    /// Returns the budget share of the last frame. Call it before waiting for something else.
    pub fn release(&mut self) {
        self.taken = None;
    }

    fn frame(&mut self, body: Vec<u8>, fds: usize) -> Result<Frame> {
        if self.fds.len() < fds && !std::mem::take(&mut self.lost_fds) {
            return Err(Error::corrupt(format!("a frame announces {fds} descriptors, {} arrived", self.fds.len())));
        }
        let fds = self.fds.drain(..fds.min(self.fds.len())).collect();
        if !self.is_midway() && !self.fds.is_empty() {
            return Err(Error::corrupt("descriptors arrived that no frame announces"));
        }
        self.count_fds();
        Ok(Frame { body, fds })
    }

    /// Whether a frame has begun and not ended.
    pub fn is_midway(&self) -> bool {
        self.start < self.end || self.long.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{send, send_all};
    use rustix::net::SendFlags;
    use std::io::{Read, Seek, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    fn pair() -> (UnixStream, UnixStream) {
        UnixStream::pair().unwrap()
    }

    fn receive(decoder: &mut Decoder, socket: &UnixStream) -> Frame {
        loop {
            if let Some(frame) = decoder.take().unwrap() {
                return frame;
            }
            assert!(decoder.fill(socket.as_fd()).unwrap() > 0, "the connection ended before a frame");
        }
    }

    #[test]
    fn frames_of_all_sizes_arrive_whole_and_in_order() {
        let (a, b) = pair();
        let edge = BUFFER_BYTES - HEADER_BYTES;
        let sizes = [0, 1, 7, edge, edge + 1, BUFFER_BYTES, 3 * BUFFER_BYTES + 5, 0, 1 << 20, 9];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for size in sizes {
                    send_all(a.as_fd(), &Frame::new(vec![size as u8; size])).unwrap();
                }
            });
            let mut decoder = Decoder::default();
            for size in sizes {
                let frame = receive(&mut decoder, &b);
                assert!(frame.body == vec![size as u8; size] && frame.fds.is_empty());
            }
            assert!(!decoder.is_midway());
        });
    }

    #[test]
    fn descriptors_stay_with_their_frames() {
        let (a, b) = pair();
        let mut decoder = Decoder::default();
        for count in [0, 3, 1, FRAME_FDS_MAX, 0] {
            let files = (0..count).map(|index| {
                let mut file = tempfile::tempfile().unwrap();
                write!(file, "{index}").unwrap();
                file.rewind().unwrap();
                OwnedFd::from(file)
            });
            send_all(a.as_fd(), &Frame { body: vec![count as u8], fds: files.collect() }).unwrap();
        }
        for count in [0, 3, 1, FRAME_FDS_MAX, 0] {
            let frame = receive(&mut decoder, &b);
            assert_eq!((frame.body, frame.fds.len()), (vec![count as u8], count));
            for (index, fd) in frame.fds.into_iter().enumerate() {
                let mut text = String::new();
                std::fs::File::from(fd).read_to_string(&mut text).unwrap();
                assert_eq!(text, index.to_string());
            }
        }
    }

    #[test]
    fn invalid_headers_and_unannounced_descriptors_are_refused() {
        for header in [[255, 255, 255, 255, 0, 0, 0, 0], [0, 0, 0, 0, 65, 0, 0, 0], [0, 0, 0, 0, 1, 0, 0, 0], [1; 8]] {
            let (mut a, b) = pair();
            a.write_all(&header).unwrap();
            let mut decoder = Decoder::default();
            decoder.fill(b.as_fd()).unwrap();
            assert!(decoder.take().is_err(), "{header:?}");
        }
        let (a, b) = pair();
        let file = OwnedFd::from(tempfile::tempfile().unwrap());
        send(a.as_fd(), &[0; 8], &Frame { body: vec![], fds: vec![file] }, 0, SendFlags::empty()).unwrap();
        let mut decoder = Decoder::default();
        decoder.fill(b.as_fd()).unwrap();
        assert!(decoder.take().unwrap_err().message().contains("no frame announces"));
        assert!(Frame::new(vec![0; FRAME_BYTES_MAX + 1]).header().is_err());
    }

    /// Sends a frame of `len` bytes without its last byte, as far as the socket accepts it.
    fn begin(socket: &UnixStream, len: usize) {
        socket.set_nonblocking(true).unwrap();
        let mut frame = Frame::new(vec![b' '; len]).header().unwrap().to_vec();
        frame.resize(HEADER_BYTES + len - 1, b' ');
        let _ = (&*socket).write(&frame).unwrap();
    }

    fn fill_all(decoder: &mut Decoder, socket: &UnixStream) -> std::io::ErrorKind {
        loop {
            assert!(decoder.take().unwrap().is_none());
            if let Err(error) = decoder.fill_now(socket.as_fd()) {
                return error.kind();
            }
        }
    }

    #[test]
    fn incomplete_frames_share_one_budget() {
        let budget = FrameBudget::new(2 * FRAME_BYTES_MAX, 0);
        let mut ends: Vec<_> = (0..60).map(|_| (pair(), Decoder::sharing(Arc::clone(&budget)))).collect();
        for ((ours, theirs), decoder) in &mut ends {
            begin(theirs, FRAME_BYTES_MAX);
            assert_eq!(fill_all(decoder, ours), std::io::ErrorKind::WouldBlock);
        }
        assert_eq!(budget.bytes(), 2 * FRAME_BYTES_MAX);
        let held: usize = ends.iter().map(|(_, decoder)| decoder.long.as_ref().unwrap().body.len()).sum();
        assert_eq!(held, budget.bytes(), "the other 58 hold only their buffers");
        // A closed connection makes room for the next; short frames need none.
        ends.remove(0);
        let ((ours, _theirs), decoder) = ends.last_mut().unwrap();
        fill_all(decoder, ours);
        assert_eq!((decoder.long.as_ref().unwrap().body.len(), budget.bytes()), (FRAME_BYTES_MAX, 2 * FRAME_BYTES_MAX));
        let (ours, theirs) = pair();
        send_all(theirs.as_fd(), &Frame::new(vec![7; 1000])).unwrap();
        assert_eq!(receive(&mut Decoder::sharing(Arc::clone(&budget)), &ours).body, [7; 1000]);
        drop(ends);
        assert_eq!(budget.bytes(), 0);
    }

    #[test]
    fn budget_of_a_frame_is_returned_with_the_next() {
        let budget = FrameBudget::new(0, 0);
        let (ours, theirs) = pair();
        let mut decoder = Decoder::sharing(Arc::clone(&budget));
        std::thread::scope(|scope| {
            scope.spawn(|| (0..3).for_each(|_| send_all(theirs.as_fd(), &Frame::new(vec![1; 1 << 20])).unwrap()));
            for _ in 0..3 {
                assert_eq!(receive(&mut decoder, &ours).body.len(), 1 << 20);
                assert_eq!(budget.bytes(), 1 << 20, "the share is held while the frame is parsed");
            }
        });
        assert!(decoder.take().unwrap().is_none() && !decoder.is_midway());
        assert_eq!(budget.bytes(), 0);
    }

    #[test]
    fn descriptors_of_incomplete_frames_share_one_limit() {
        let budget = FrameBudget::new(0, 0);
        let mut ends: Vec<_> = (0..3).map(|_| (pair(), Decoder::sharing(Arc::clone(&budget)))).collect();
        let mut outcomes = Vec::new();
        for ((ours, theirs), decoder) in &mut ends {
            let fds = (0..FRAME_FDS_MAX / 2).map(|_| OwnedFd::from(tempfile::tempfile().unwrap())).collect();
            let header = [9, 0, 0, 0, (FRAME_FDS_MAX / 2) as u8, 0, 0, 0];
            send(theirs.as_fd(), &header, &Frame { body: vec![1], fds }, 0, SendFlags::empty()).unwrap();
            outcomes.push(decoder.fill(ours.as_fd()).is_ok());
        }
        assert_eq!((outcomes, budget.fds()), (vec![true, true, false], FRAME_FDS_MAX));
        drop(ends);
        assert_eq!(budget.fds(), 0);
    }
}
