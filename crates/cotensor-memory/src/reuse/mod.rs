//! Allocators that reuse memory.

mod embedded;
mod pool;
mod prefault;

pub use embedded::EmbeddedMemory;
pub use pool::{MemfdPool, PoolStats};
