//! The store for browsers: `cotensor-store` with memory that JavaScript owns.
//!
//! The store keeps names, versions, leases, layouts, budgets and counters. Each of its segments is a number, which
//! TypeScript maps to an `ArrayBuffer`, a `GPUBuffer` or an `MLTensor`. No bytes of tensors are in WebAssembly's memory.

pub mod errors;
mod handles;
pub mod host;
mod memory;
pub mod spec;
pub mod store;
