//! Tests of the public API across processes.

#![allow(clippy::unwrap_used)]

mod cuda;
mod processes;
mod sandbox;
