//! Bytes on the socket: frames with descriptors alongside, and the JSON-RPC messages inside them.

mod frame;
mod numbers;
mod outbox;
mod room;
pub mod rpc;
mod spin;

pub use frame::{Decoder, FRAME_BYTES_MAX, FRAME_FDS_MAX, Frame, send, send_all, send_all_while};
pub use numbers::check_integers;
pub use outbox::Outbox;
pub(crate) use outbox::WAITING_FRAMES_MAX;
pub use room::FrameRoom;
pub use spin::Spin;
