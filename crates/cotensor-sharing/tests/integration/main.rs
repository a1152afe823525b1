//! The sharing API as its users see it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod sharing;
mod threads;
