//! Frames and their transfer to a socket.

use cotensor_core::{Error, Result};
use rustix::io::{Errno, IoSlice};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// The longest body, in bytes.
pub const FRAME_BYTES_MAX: usize = 16 << 20;
/// The most descriptors that one frame carries.
pub const FRAME_FDS_MAX: usize = 64;

pub(super) const HEADER_BYTES: usize = 8;

/// One message and its descriptors, which only a frame that is sent may borrow.
#[derive(Debug)]
pub struct Frame<F = OwnedFd> {
    /// JSON.
    pub body: Vec<u8>,
    /// In the order in which the body refers to them.
    pub fds: Vec<F>,
}

impl Frame {
    /// A frame without descriptors.
    pub fn new(body: Vec<u8>) -> Self {
        Self { body, fds: Vec::new() }
    }
}

impl<F> Frame<F> {
    /// The header before the body.
    ///
    /// # Errors
    /// `Invalid` for a body or a number of descriptors past the limits.
    pub fn header(&self) -> Result<[u8; HEADER_BYTES]> {
        if self.body.len() > FRAME_BYTES_MAX || self.fds.len() > FRAME_FDS_MAX {
            let (bytes, fds) = (self.body.len(), self.fds.len());
            return Err(Error::invalid(format!(
                "a message of {bytes} bytes and {fds} descriptors; the limits are {FRAME_BYTES_MAX} and {FRAME_FDS_MAX}"
            )));
        }
        let [a, b, c, d] = (self.body.len() as u32).to_le_bytes();
        Ok([a, b, c, d, self.fds.len() as u8, 0, 0, 0])
    }
}

/// Sends the rest of a frame after its first `sent` bytes, header included. Returns the number of bytes sent by this
/// call.
///
/// # Errors
/// Those of `sendmsg`, `WouldBlock` included where `flags` or the socket are non-blocking.
pub fn send<F: AsFd>(
    socket: BorrowedFd<'_>,
    header: &[u8],
    frame: &Frame<F>,
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
/// `Invalid` for a frame past the limits, `Io` when the connection has ended.
pub fn send_all<F: AsFd>(socket: BorrowedFd<'_>, frame: &Frame<F>) -> Result<()> {
    send_all_while(socket, frame, || false)
}

/// As [`send_all`]. Each time the socket's write timeout passes, `keep_waiting` decides whether to go on.
///
/// # Errors
/// As [`send_all`].
pub fn send_all_while<F: AsFd>(
    socket: BorrowedFd<'_>,
    frame: &Frame<F>,
    mut keep_waiting: impl FnMut() -> bool,
) -> Result<()> {
    let header = frame.header()?;
    let mut sent = 0;
    while sent < header.len() + frame.body.len() {
        match send(socket, &header, frame, sent, SendFlags::empty()) {
            Ok(bytes) => sent += bytes,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && keep_waiting() => {}
            Err(error) => return Err(Error::io("sending", &error)),
        }
    }
    Ok(())
}

/// A frame of which a part may be sent.
pub(crate) struct PartialFrame {
    header: [u8; HEADER_BYTES],
    frame: Frame,
    sent: usize,
}

impl PartialFrame {
    /// # Errors
    /// `Invalid` for a frame past the limits.
    pub(crate) fn new(frame: Frame) -> Result<Self> {
        Ok(Self { header: frame.header()?, frame, sent: 0 })
    }

    /// The length in bytes, header included.
    pub(crate) fn len(&self) -> usize {
        HEADER_BYTES + self.frame.body.len()
    }

    /// The number of descriptors.
    pub(crate) fn fds(&self) -> usize {
        self.frame.fds.len()
    }

    /// Whether a part is sent.
    pub(crate) fn has_begun(&self) -> bool {
        self.sent > 0
    }

    /// Sends as much as the socket accepts without blocking. Whether all of it is sent.
    ///
    /// # Errors
    /// `Io` when the connection has ended.
    pub(crate) fn send_now(&mut self, socket: &UnixStream) -> Result<bool> {
        while self.sent < self.len() {
            match send(socket.as_fd(), &self.header, &self.frame, self.sent, SendFlags::DONTWAIT) {
                Ok(bytes) => self.sent += bytes,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io("sending", &error)),
            }
        }
        Ok(true)
    }
}
