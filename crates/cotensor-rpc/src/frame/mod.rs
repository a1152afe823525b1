//! Length-prefixed frames, and the bound on those that a process reads at a time.

mod decoder;
mod room;

pub use decoder::{Decoder, FRAME_BYTES_MAX, FRAME_FDS_MAX, Frame, send, send_all, send_all_while};
pub use room::FrameRoom;
