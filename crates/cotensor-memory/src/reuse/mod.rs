//! Allocators that reuse memory.

mod blocks;
mod free_blocks;
mod give_back;
mod local;
mod pool;
mod prefault;
mod unused;

pub use blocks::{BLOCK_BYTES_MAX, BlockLimits, Blocks};
pub use free_blocks::PoolStats;
pub use give_back::GiveBack;
pub use local::LocalMemory;
pub use pool::MemfdPool;
pub use unused::Unused;
