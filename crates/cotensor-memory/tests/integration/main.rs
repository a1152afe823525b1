//! Tests of the public API across processes.

#![allow(clippy::unwrap_used)]

mod cuda;
mod cuda_arrays;
mod cuda_slabs;
mod processes;
mod sandbox;
