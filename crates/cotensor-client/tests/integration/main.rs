//! The protocol's generated files, and clients whose daemon dies.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod golden;
mod session_end;
