//! The crate's integration tests, in one program.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod media_files;
mod preprocess;
mod support;
