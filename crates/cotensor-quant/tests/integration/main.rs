//! Quantized matrices from outside: errors, bounds of accuracy, layout and bad input.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod accuracy;
mod bad_input;
mod golden;
mod inputs;
mod layout;
mod samples;
