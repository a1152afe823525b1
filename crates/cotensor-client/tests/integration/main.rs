//! The protocol's generated files, and clients during the end of their daemon.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod golden;
mod lost_answers;
mod reserved_slabs;
mod scripted;
mod session_end;
