//! Length-prefixed frames on a Unix stream socket, with file descriptors alongside.
//!
//! A frame is a header of 8 bytes (body length as a little-endian `u32`, number of descriptors as `u8`, three zero
//! bytes) and the body. The descriptors travel with the header's first byte.

use super::room::{BytesTaken, FrameRoom};
use cotensor_core::{Error, Result};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The longest body, in bytes.
pub const FRAME_BYTES_MAX: usize = 16 << 20;
/// The most descriptors that one frame carries.
pub const FRAME_FDS_MAX: usize = 64;

const HEADER_BYTES: usize = 8;
/// Each decoder's buffer. A frame that does not fit is read into memory of its own.
const BUFFER_BYTES: usize = 64 << 10;
/// Descriptors that may wait for the rest of their frames: those of one frame, and of the next, which came with the end of it.
const FDS_WAITING_MAX: usize = 2 * FRAME_FDS_MAX;

/// One message: a body and the descriptors that came with it.
#[derive(Debug, Default)]
pub struct Frame {
    /// JSON.
    pub body: Vec<u8>,
    /// In the order in which the body counts them.
    pub fds: Vec<OwnedFd>,
}

impl Frame {
    /// A frame without descriptors.
    pub fn new(body: Vec<u8>) -> Self {
        Self { body, fds: Vec::new() }
    }

    /// What stands before the body.
    ///
    /// # Errors
    /// `Invalid` for a body or a number of descriptors past the limits.
    pub fn header(&self) -> Result<[u8; HEADER_BYTES]> {
        if self.body.len() > FRAME_BYTES_MAX || self.fds.len() > FRAME_FDS_MAX {
            let (bytes, fds) = (self.body.len(), self.fds.len());
            return Err(Error::invalid(format!(
                "a message of {bytes} bytes and {fds} descriptors; at most {FRAME_BYTES_MAX} and {FRAME_FDS_MAX}"
            )));
        }
        let [a, b, c, d] = (self.body.len() as u32).to_le_bytes();
        Ok([a, b, c, d, self.fds.len() as u8, 0, 0, 0])
    }
}

/// Sends what is left of a frame, of which `sent` bytes (header included) are gone already; returns how many went now.
///
/// # Errors
/// The system's, `WouldBlock` among them where `flags` or the socket say not to wait.
pub fn send(
    socket: BorrowedFd<'_>,
    header: &[u8],
    frame: &Frame,
    sent: usize,
    flags: SendFlags,
) -> std::io::Result<usize> {
    let (head, body) = match sent.checked_sub(header.len()) {
        None => (&header[sent..], frame.body.as_slice()),
        Some(sent) => (&[][..], &frame.body[sent..]),
    };
    let parts = [IoSlice::new(head), IoSlice::new(body)];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FRAME_FDS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<BorrowedFd<'_>> = if sent == 0 { frame.fds.iter().map(AsFd::as_fd).collect() } else { Vec::new() };
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(Errno::NOBUFS.into());
    }
    Ok(sendmsg(socket, &parts, &mut ancillary, flags | SendFlags::NOSIGNAL)?)
}

/// Sends a whole frame on a blocking socket.
///
/// # Errors
/// `Invalid` for a frame past the limits, `Io` when the other end is gone.
pub fn send_all(socket: BorrowedFd<'_>, frame: &Frame) -> Result<()> {
    send_all_while(socket, frame, || false)
}

/// As [`send_all`]; whenever the socket takes nothing for as long as its timeout, `wanted` says whether to go on.
///
/// # Errors
/// As [`send_all`].
pub fn send_all_while(socket: BorrowedFd<'_>, frame: &Frame, mut wanted: impl FnMut() -> bool) -> Result<()> {
    let header = frame.header()?;
    let mut sent = 0;
    while sent < header.len() + frame.body.len() {
        match send(socket, &header, frame, sent, SendFlags::empty()) {
            Ok(bytes) => sent += bytes,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && wanted() => {}
            Err(error) => return Err(Error::io("sending", &error)),
        }
    }
    Ok(())
}

/// Puts frames together from what arrives in pieces.
pub struct Decoder {
    room: Option<Arc<FrameRoom>>,
    buffer: Vec<u8>,
    /// Where in `buffer` the next frame starts, and where what was received ends.
    start: usize,
    end: usize,
    long: Option<Long>,
    /// Room of the frame that was taken last: it is given back when the next one is asked for.
    taken: Option<BytesTaken>,
    fds: VecDeque<OwnedFd>,
    /// Descriptors that count in `room`.
    fds_held: usize,
    /// Whether this process could not open all descriptors that came.
    lost_fds: bool,
}

/// A frame that does not fit into the buffer. Nothing of the next frame is read before its end.
struct Long {
    /// Empty until there is room for it.
    body: Vec<u8>,
    filled: usize,
    len: usize,
    fds: usize,
    taken: Option<BytesTaken>,
}

impl Default for Decoder {
    fn default() -> Self {
        Self::over(None)
    }
}

impl Drop for Decoder {
    fn drop(&mut self) {
        if let Some(room) = &self.room {
            room.hold_fds(self.fds_held, 0);
        }
    }
}

impl Decoder {
    /// One that shares `room` with others.
    pub fn sharing(room: Arc<FrameRoom>) -> Self {
        Self::over(Some(room))
    }

    fn over(room: Option<Arc<FrameRoom>>) -> Self {
        let (buffer, fds) = (Vec::new(), VecDeque::new());
        Self { room, buffer, start: 0, end: 0, long: None, taken: None, fds, fds_held: 0, lost_fds: false }
    }

    /// Reads once, what [`take`](Self::take) left to read; returns how many bytes came, zero at the end.
    ///
    /// # Errors
    /// The system's, `WouldBlock` among them, which also says that there is no room for a long frame yet; `InvalidData` when more
    /// descriptors come than frames may carry.
    pub fn fill(&mut self, socket: BorrowedFd<'_>) -> std::io::Result<usize> {
        self.read(socket, RecvFlags::empty())
    }

    /// As [`fill`](Self::fill), of what is there now.
    ///
    /// # Errors
    /// As [`fill`](Self::fill); `WouldBlock` when nothing is.
    pub fn fill_now(&mut self, socket: BorrowedFd<'_>) -> std::io::Result<usize> {
        self.read(socket, RecvFlags::DONTWAIT)
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
            // The kernel keeps what does not fit, here or into the process's limit.
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

    /// Room to read into.
    fn make_room(&mut self, wait: bool) -> std::io::Result<()> {
        if let Some(long) = &mut self.long {
            if long.body.is_empty() {
                if let Some(room) = &self.room {
                    let none_yet = || std::io::Error::from(std::io::ErrorKind::WouldBlock);
                    long.taken = Some(room.take(long.len, wait).ok_or_else(none_yet)?);
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

    /// Counts the descriptors that wait; false where all decoders have too many.
    fn count_fds(&mut self) -> bool {
        let now = self.fds.len();
        let counted = self.room.as_ref().is_none_or(|room| room.hold_fds(self.fds_held, now));
        if counted {
            self.fds_held = now;
        }
        counted
    }

    /// The next frame, if all of it is there. The frame before it has to be done with: its room is given back.
    ///
    /// A frame whose descriptors this process could not open, because it has as many as it may, comes with fewer.
    ///
    /// # Errors
    /// `Corrupt` for a header past the limits, or one that counts descriptors which did not come.
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

    /// Gives back the room of the frame that was taken last, before something is waited for.
    pub fn release(&mut self) {
        self.taken = None;
    }

    fn frame(&mut self, body: Vec<u8>, fds: usize) -> Result<Frame> {
        if self.fds.len() < fds && !std::mem::take(&mut self.lost_fds) {
            return Err(Error::corrupt(format!("a frame counts {fds} descriptors, {} came", self.fds.len())));
        }
        let fds = self.fds.drain(..fds.min(self.fds.len())).collect();
        if !self.is_midway() && !self.fds.is_empty() {
            return Err(Error::corrupt("descriptors came that no frame counts"));
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
    use std::io::{Read, Seek, Write};
    use std::os::unix::net::UnixStream;

    fn pair() -> (UnixStream, UnixStream) {
        UnixStream::pair().unwrap()
    }

    fn receive(decoder: &mut Decoder, socket: &UnixStream) -> Frame {
        loop {
            if let Some(frame) = decoder.take().unwrap() {
                return frame;
            }
            assert!(decoder.fill(socket.as_fd()).unwrap() > 0, "the end before a frame");
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
    fn wrong_headers_and_uncounted_descriptors_are_refused() {
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
        assert!(decoder.take().unwrap_err().message().contains("no frame counts"));
        assert!(Frame::new(vec![0; FRAME_BYTES_MAX + 1]).header().is_err());
    }

    /// Sends a frame of `len` bytes but for its last byte, as far as the socket takes it.
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
    fn incomplete_frames_share_one_room() {
        let room = FrameRoom::new(2 * FRAME_BYTES_MAX, 0);
        let mut ends: Vec<_> = (0..60).map(|_| (pair(), Decoder::sharing(Arc::clone(&room)))).collect();
        for ((ours, theirs), decoder) in &mut ends {
            begin(theirs, FRAME_BYTES_MAX);
            assert_eq!(fill_all(decoder, ours), std::io::ErrorKind::WouldBlock);
        }
        assert_eq!(room.bytes(), 2 * FRAME_BYTES_MAX);
        let held: usize = ends.iter().map(|(_, decoder)| decoder.long.as_ref().unwrap().body.len()).sum();
        assert_eq!(held, room.bytes(), "the other 58 hold their buffers alone");
        // What is ended makes room for the next; short frames need none.
        ends.remove(0);
        let ((ours, _theirs), decoder) = ends.last_mut().unwrap();
        fill_all(decoder, ours);
        assert_eq!((decoder.long.as_ref().unwrap().body.len(), room.bytes()), (FRAME_BYTES_MAX, 2 * FRAME_BYTES_MAX));
        let (ours, theirs) = pair();
        send_all(theirs.as_fd(), &Frame::new(vec![7; 1000])).unwrap();
        assert_eq!(receive(&mut Decoder::sharing(Arc::clone(&room)), &ours).body, [7; 1000]);
        drop(ends);
        assert_eq!(room.bytes(), 0);
    }

    #[test]
    fn the_room_of_a_frame_is_given_back_with_the_next() {
        let room = FrameRoom::new(0, 0);
        let (ours, theirs) = pair();
        let mut decoder = Decoder::sharing(Arc::clone(&room));
        std::thread::scope(|scope| {
            scope.spawn(|| (0..3).for_each(|_| send_all(theirs.as_fd(), &Frame::new(vec![1; 1 << 20])).unwrap()));
            for _ in 0..3 {
                assert_eq!(receive(&mut decoder, &ours).body.len(), 1 << 20);
                assert_eq!(room.bytes(), 1 << 20, "it is held while the frame is parsed");
            }
        });
        assert!(decoder.take().unwrap().is_none() && !decoder.is_midway());
        assert_eq!(room.bytes(), 0);
    }

    #[test]
    fn descriptors_of_incomplete_frames_are_bounded_together() {
        let room = FrameRoom::new(0, 0);
        let mut ends: Vec<_> = (0..3).map(|_| (pair(), Decoder::sharing(Arc::clone(&room)))).collect();
        let mut outcomes = Vec::new();
        for ((ours, theirs), decoder) in &mut ends {
            let fds = (0..FRAME_FDS_MAX / 2).map(|_| OwnedFd::from(tempfile::tempfile().unwrap())).collect();
            let header = [9, 0, 0, 0, (FRAME_FDS_MAX / 2) as u8, 0, 0, 0];
            send(theirs.as_fd(), &header, &Frame { body: vec![1], fds }, 0, SendFlags::empty()).unwrap();
            outcomes.push(decoder.fill(ours.as_fd()).is_ok());
        }
        assert_eq!((outcomes, room.fds()), (vec![true, true, false], FRAME_FDS_MAX));
        drop(ends);
        assert_eq!(room.fds(), 0);
    }
}
