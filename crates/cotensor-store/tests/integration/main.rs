//! The store from outside, and a second store built on its backend API.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod blobs;
mod concurrent;
mod conformance;
mod fake_disk;

mod model;
mod restore;
mod second_store;
mod spill;
mod spill_failures;
mod store;
