//! Allocators that reuse memory.

mod blocks;
mod embedded;
mod free_blocks;
mod pool;
mod prefault;

pub use blocks::{BLOCK_BYTES_MAX, BlockLimits, Blocks};
pub use embedded::EmbeddedMemory;
pub use free_blocks::PoolStats;
pub use pool::MemfdPool;
