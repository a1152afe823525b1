//! Tests of functions over a daemon in this process.
//!
//! They need `cargo nextest`, which runs each test in a process of its own: one test counts the threads of the process.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod arena;
mod calls;
mod discovery;
mod limits;
mod messages;
mod nested;
mod processes;
mod support;
mod tasks;
mod wire;
