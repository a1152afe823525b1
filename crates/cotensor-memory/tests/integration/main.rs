//! Tests of the public API across processes.

#![allow(clippy::unwrap_used)]

mod processes;
mod sandbox;
