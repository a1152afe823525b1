//! Bytes on the socket: frames with descriptors alongside, and the JSON-RPC messages inside them.

mod frame;
pub mod rpc;

pub use frame::{Decoder, FRAME_BYTES_MAX, FRAME_FDS_MAX, Frame, send, send_all};
