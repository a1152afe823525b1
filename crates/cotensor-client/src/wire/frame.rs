//! Length-prefixed frames on a Unix stream socket, with file descriptors alongside.
//!
//! A frame is a header of 8 bytes (body length as a little-endian `u32`, number of descriptors as `u8`, three zero
//! bytes) and the body. The descriptors travel with the header's first byte.

use cotensor_core::{Error, Result};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The longest body, in bytes.
pub const FRAME_BYTES_MAX: usize = 16 << 20;
/// The most descriptors that one frame carries.
pub const FRAME_FDS_MAX: usize = 64;

const HEADER_BYTES: usize = 8;
/// Read at a time.
const CHUNK_BYTES: usize = 64 << 10;
/// A buffer that one large frame made longer than this is given back.
const KEPT_BYTES_MAX: usize = 1 << 20;
/// Descriptors that may be waiting for the rest of their frames: a sender that keeps to the limits stays far below.
const FDS_WAITING_MAX: usize = 4 * FRAME_FDS_MAX;

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
    let header = frame.header()?;
    let mut sent = 0;
    while sent < header.len() + frame.body.len() {
        match send(socket, &header, frame, sent, SendFlags::empty()) {
            Ok(bytes) => sent += bytes,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::io("sending", &error)),
        }
    }
    Ok(())
}

/// Puts frames together from what arrives in pieces.
#[derive(Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// Where in `buffer` the next frame starts, and where what was received ends.
    start: usize,
    end: usize,
    fds: VecDeque<OwnedFd>,
}

impl Decoder {
    /// Reads once; returns how many bytes came, zero at the end.
    ///
    /// # Errors
    /// The system's, `WouldBlock` among them; `InvalidData` when more descriptors come than frames may carry.
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
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.buffer.len() < self.end + CHUNK_BYTES {
            self.buffer.resize(self.end + CHUNK_BYTES, 0);
        } else if self.end == 0 && self.buffer.len() > KEPT_BYTES_MAX {
            self.buffer = vec![0; CHUNK_BYTES];
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FRAME_FDS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut part = [IoSliceMut::new(&mut self.buffer[self.end..])];
        let received = recvmsg(socket, &mut part, &mut ancillary, flags | RecvFlags::CMSG_CLOEXEC)?;
        self.end += received.bytes;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                self.fds.extend(fds);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) || self.fds.len() > FDS_WAITING_MAX {
            return Err(invalid("more descriptors than a frame may carry, or than this process may open"));
        }
        Ok(received.bytes)
    }

    /// The next frame, if all of it is there.
    ///
    /// # Errors
    /// `Corrupt` for a header past the limits, or one that counts descriptors which did not come.
    pub fn take(&mut self) -> Result<Option<Frame>> {
        let rest = &self.buffer[self.start..self.end];
        let Some((header, rest)) = rest.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let [a, b, c, d, fds, zeros @ ..] = *header;
        let (len, fds) = (u32::from_le_bytes([a, b, c, d]) as usize, usize::from(fds));
        if len > FRAME_BYTES_MAX || fds > FRAME_FDS_MAX || zeros != [0; 3] {
            return Err(Error::corrupt(format!("a frame of {len} bytes and {fds} descriptors")));
        }
        let Some(body) = rest.get(..len) else { return Ok(None) };
        if self.fds.len() < fds {
            return Err(Error::corrupt(format!("a frame counts {fds} descriptors, {} came", self.fds.len())));
        }
        let frame = Frame { body: body.to_vec(), fds: self.fds.drain(..fds).collect() };
        self.start += HEADER_BYTES + len;
        if self.start == self.end && !self.fds.is_empty() {
            return Err(Error::corrupt("descriptors came that no frame counts"));
        }
        Ok(Some(frame))
    }

    /// Whether a frame has begun and not ended.
    pub fn is_midway(&self) -> bool {
        self.start < self.end
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
        let sizes = [0, 1, 7, CHUNK_BYTES, 3 * CHUNK_BYTES + 5, 0, 1 << 20];
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
}
