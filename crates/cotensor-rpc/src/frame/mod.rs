//! Length-prefixed frames on a Unix stream socket, with file descriptors alongside.
//!
//! A frame is a header of 8 bytes (body length as a little-endian `u32`, number of descriptors as `u8`, three zero
//! bytes) and the body. The descriptors travel with the header's first byte.

mod budget;
mod decoder;
mod message;

pub use budget::FrameBudget;
pub use decoder::Decoder;
pub(crate) use message::PartialFrame;
pub use message::{FRAME_BYTES_MAX, FRAME_FDS_MAX, Frame, send, send_all, send_all_while};
