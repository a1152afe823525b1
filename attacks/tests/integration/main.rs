//! Attempts to abuse the daemon. Each ends in [`Target::assert_unharmed`](cotensor_attacks::Target::assert_unharmed).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod channels;
mod descriptors;
mod files;
mod forged;
mod frames;
mod immutable;
mod messages;
mod other_user;
mod readers;
mod web;
