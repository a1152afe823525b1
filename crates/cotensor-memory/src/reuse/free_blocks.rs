//! The free memfds of a pool.

use crate::host::MemfdMut;
use cotensor_core::sync::lock;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

/// The state of a pool and its counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Free memfds.
    pub free: usize,
    /// Their bytes.
    pub free_bytes: usize,
    /// Requests that a free memfd served.
    pub hits: u64,
    /// Requests that created a memfd.
    pub misses: u64,
}

/// Free memfds by capacity, up to a number of bytes.
pub(super) struct FreeBlocks {
    bytes_max: usize,
    /// The process that created the pool. A forked child has the same pages and leaves them to its parent.
    owner: u32,
    blocks: Mutex<Blocks>,
}

#[derive(Default)]
struct Blocks {
    by_capacity: BTreeMap<usize, Vec<Block>>,
    stats: PoolStats,
}

/// A free memfd.
pub(super) struct Block {
    pub(super) memfd: MemfdMut,
    /// The number of leading bytes that may not be zero.
    pub(super) stale: usize,
}

impl FreeBlocks {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, owner: std::process::id(), blocks: Mutex::default() }
    }

    pub(super) fn stats(&self) -> PoolStats {
        self.blocks().stats
    }

    /// Whether this is the process that created the pool, and not a forked child.
    pub(super) fn is_owner(&self) -> bool {
        self.owner == std::process::id()
    }

    /// Whether a memfd of `capacity` bytes fits.
    pub(super) fn has_room_for(&self, capacity: usize) -> bool {
        self.is_owner() && capacity <= self.bytes_max.saturating_sub(self.blocks().stats.free_bytes)
    }

    /// Whether a memfd of exactly `capacity` bytes is free.
    pub(super) fn contains(&self, capacity: usize) -> bool {
        self.blocks().by_capacity.contains_key(&capacity)
    }

    /// Takes the smallest memfd of at least `wanted` bytes. One that is more than a quarter longer is not taken,
    /// because publishing frees its rest.
    pub(super) fn take(&self, wanted: usize) -> Option<Block> {
        let mut blocks = self.blocks();
        let fitting = blocks.by_capacity.range_mut(wanted..=wanted.saturating_add(wanted / 4)).next();
        let found = fitting.filter(|_| self.is_owner());
        let found = found.and_then(|(&capacity, same)| Some((capacity, same.pop()?, same.is_empty())));
        let Some((capacity, block, last)) = found else {
            blocks.stats.misses += 1;
            return None;
        };
        if last {
            blocks.by_capacity.remove(&capacity);
        }
        blocks.stats.hits += 1;
        blocks.stats.free -= 1;
        blocks.stats.free_bytes -= capacity;
        Some(block)
    }

    /// Adds a free memfd. Drops it and returns `false` when it does not fit.
    pub(super) fn put(&self, block: Block) -> bool {
        let capacity = block.memfd.capacity();
        let mut blocks = self.blocks();
        let total = blocks.stats.free_bytes.saturating_add(capacity);
        let fits = capacity > 0 && total <= self.bytes_max && self.is_owner();
        if fits {
            blocks.stats.free += 1;
            blocks.stats.free_bytes = total;
            blocks.by_capacity.entry(capacity).or_default().push(block);
        }
        fits
    }

    /// Drops one unused memfd of exactly `capacity` bytes.
    pub(super) fn remove_unused(&self, capacity: usize) {
        let mut blocks = self.blocks();
        let Some(same) = blocks.by_capacity.get_mut(&capacity) else { return };
        let unused = same.iter().position(|block| block.stale == 0).map(|index| same.remove(index));
        if same.is_empty() {
            blocks.by_capacity.remove(&capacity);
        }
        if unused.is_some() {
            blocks.stats.free -= 1;
            blocks.stats.free_bytes -= capacity;
        }
        // Unmapping takes long: not while the lock is held.
        drop(blocks);
        drop(unused);
    }

    fn blocks(&self) -> MutexGuard<'_, Blocks> {
        lock(&self.blocks)
    }

    /// As after a fork: the owner is another process.
    #[cfg(test)]
    pub(super) fn set_foreign_owner(&mut self) {
        self.owner += 1;
    }
}
