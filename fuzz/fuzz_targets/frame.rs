//! Bytes on a socket, in pieces with descriptors: frames within the limits, or an error. No descriptor is duplicated.
//!
//! Each piece starts with two bytes: its number of descriptors and its length.
#![no_main]

use cotensor_rpc::{Decoder, FRAME_BYTES_MAX, FRAME_FDS_MAX, Frame, send};
use rustix::net::SendFlags;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// More descriptors than the decoder queues.
const FDS_MAX: usize = 5 * FRAME_FDS_MAX;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok((sender, receiver)) = UnixStream::pair() else { return };
    let (mut decoder, mut rest) = (Decoder::default(), bytes);
    let (mut sent, mut received) = (0, 0);
    while let [fds, len, after @ ..] = rest {
        let (piece, after) = after.split_at(usize::from(*len).min(after.len()));
        rest = after;
        let count = usize::from(*fds) % 4;
        if piece.is_empty() || sent + count > FDS_MAX {
            continue;
        }
        let Ok(null) = File::open("/dev/null") else { return };
        let fds: Vec<OwnedFd> = (0..count).filter_map(|_| null.try_clone().ok()).map(OwnedFd::from).collect();
        sent += fds.len();
        if send(sender.as_fd(), piece, &Frame { body: Vec::new(), fds }, 0, SendFlags::NOSIGNAL).is_err() {
            return;
        }
        if decoder.fill(receiver.as_fd()).is_err() {
            return;
        }
        loop {
            match decoder.take() {
                Ok(Some(frame)) => {
                    assert!(frame.body.len() <= FRAME_BYTES_MAX && frame.fds.len() <= FRAME_FDS_MAX);
                    received += frame.fds.len();
                    assert!(received <= sent);
                }
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
});
