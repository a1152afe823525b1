//! The answering side of a connection: method registry, reader, requests, batches and the send queue.

mod batch;
mod counters;
mod outbox;
mod reader;
mod registry;
mod request;

pub use batch::{BatchPermit, BatchPermits};
pub use counters::CallCounts;
pub use outbox::{Outbox, WAITING_FDS_MAX, WAITING_FRAMES_MAX};
pub use reader::{Polled, Reader};
pub use registry::Registry;
pub use request::{Peer, Request};
