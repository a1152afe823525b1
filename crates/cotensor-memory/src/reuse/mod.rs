//! Allocators that reuse memory.

mod embedded;
mod free_blocks;
mod pool;
mod prefault;

pub use embedded::EmbeddedMemory;
pub use free_blocks::PoolStats;
pub use pool::MemfdPool;
