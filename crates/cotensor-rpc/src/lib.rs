//! JSON-RPC 2.0 between processes of one machine: frames with file descriptors on a Unix socket, the calling side of a
//! connection and the answering side.
//!
//! The crate knows no method of the daemon.

mod busy_poll;
mod connection;
mod frame;
mod message;
mod method;
pub mod server;

pub use busy_poll::BusyPoll;
pub use connection::{
    Answer, CallGroup, CallsMax, Connection, Deadline, DescribeWait, OnNotification, PendingCall, WaitLimit, Waited,
    cancelled_call, millis,
};
pub use frame::{Decoder, FRAME_BYTES_MAX, FRAME_FDS_MAX, Frame, FrameBudget, send, send_all, send_all_while};
pub use message::*;
pub use method::{Method, MethodDescription, reencode};
