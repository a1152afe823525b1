//! Allocators that reuse memory.

mod blocks;
mod local;
mod free_blocks;
mod give_back;
mod pool;
mod prefault;

pub use blocks::{BLOCK_BYTES_MAX, BlockLimits, Blocks};
pub use local::LocalMemory;
pub use free_blocks::PoolStats;
pub use give_back::GiveBack;
pub use pool::MemfdPool;
