//! The crate's integration tests, in one program.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod chats;
mod media_files;
mod preprocess;
#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
mod random;
mod streams;
mod support;
