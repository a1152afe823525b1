//! JSON-RPC 2.0 between processes of one machine: frames on a Unix socket, file descriptors beside them, and the calling
//! side of a connection.

mod busy_poll;
mod connection;
mod frame;
mod message;
mod method;
mod outbox;

pub use busy_poll::Spin;
pub use connection::{Answer, Asked, Connection, Deadline, Group, OnNotice, Until, millis, unwanted};
pub use frame::{Decoder, FRAME_BYTES_MAX, FRAME_FDS_MAX, Frame, FrameRoom, send, send_all, send_all_while};
pub use message::*;
pub use method::{Described, Method, reencode};
pub use outbox::{Outbox, WAITING_FRAMES_MAX};
