//! The hub's cache and downloads into it, against a small hub on a loopback port.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cache;
mod damage;
mod downloads;
mod failures;
mod support;
