//! The free memfds of a pool.

use super::{GiveBack, Unused};
use crate::host::MemfdMut;
use cotensor_core::sync::lock;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

/// The most bytes of memfds that were left unpublished.
const UNPUBLISHED_BYTES_MAX: usize = 64 << 20;
/// How long such a memfd is kept.
const IDLE_MAX: Duration = Duration::from_secs(5);
/// How often such memfds are looked for. Their memory is given back within ten seconds.
const GIVE_BACK_INTERVAL: Duration = Duration::from_secs(2);

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

/// Called with the bytes of the free memfds before and after a change.
type OnChange = Box<dyn Fn(usize, usize) + Send + Sync>;

/// Free memfds by capacity, up to a number of bytes.
pub(super) struct FreeBlocks {
    bytes_max: usize,
    /// The process that created the pool. A forked child has the same pages and leaves them to its parent.
    owner: u32,
    blocks: Mutex<Blocks>,
    /// The thread that drops memfds that were left unpublished.
    gives_back: GiveBack,
    on_change: OnceLock<OnChange>,
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
    pub(super) kept: Kept,
}

/// Why a free memfd is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// The program has prefaulted it: until its first use.
    Prefaulted,
    /// It is the next of a series, which the prefaulter removes.
    Next,
    /// It was left unpublished at this time: for some seconds.
    Unpublished(Instant),
}

impl Block {
    fn unused_since(&self) -> Option<Instant> {
        match self.kept {
            Kept::Unpublished(since) => Some(since),
            Kept::Prefaulted | Kept::Next => None,
        }
    }
}

impl Blocks {
    /// Those that were left unpublished.
    fn unused(&self) -> Unused {
        let all = self.by_capacity.values().flatten();
        all.filter_map(|block| Some((block.memfd.capacity(), block.unused_since()?))).collect()
    }
}

impl FreeBlocks {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            owner: std::process::id(),
            blocks: Mutex::default(),
            gives_back: GiveBack::default(),
            on_change: OnceLock::new(),
        }
    }

    pub(super) fn stats(&self) -> PoolStats {
        self.blocks().stats
    }

    /// Calls `call` with the bytes before and after each change of the free memfds. The first `call` stays.
    pub(super) fn on_change(&self, call: OnChange) {
        let _ = self.on_change.set(call);
    }

    fn changed(&self, before: usize, now: usize) {
        if let Some(call) = self.on_change.get().filter(|_| before != now) {
            call(before, now);
        }
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
        let before = blocks.stats.free_bytes;
        blocks.stats.free_bytes -= capacity;
        drop(blocks);
        self.changed(before, before - capacity);
        Some(block)
    }

    /// Adds a free memfd. Drops it and returns `false` when it does not fit.
    pub(super) fn put(self: &Arc<Self>, block: Block) -> bool {
        if !self.is_owner() {
            return false;
        }
        let capacity = block.memfd.capacity();
        let is_unpublished = block.unused_since().is_some();
        let mut blocks = self.blocks();
        let before = blocks.stats.free_bytes;
        let total = before.saturating_add(capacity);
        let is_within = !is_unpublished || blocks.unused().bytes + capacity <= UNPUBLISHED_BYTES_MAX;
        if capacity == 0 || total > self.bytes_max || !is_within {
            return false;
        }
        blocks.stats.free += 1;
        blocks.stats.free_bytes = total;
        blocks.by_capacity.entry(capacity).or_default().push(block);
        drop(blocks);
        self.changed(before, total);
        if is_unpublished {
            let free = Arc::downgrade(self);
            let round = move || free.upgrade().is_some_and(|free| free.give_back(Instant::now()));
            self.gives_back.start(GIVE_BACK_INTERVAL, round);
        }
        true
    }

    /// Drops one memfd of exactly `capacity` bytes that is the next of a series.
    pub(super) fn remove_next(&self, capacity: usize) {
        self.drop_first(|block| block.kept == Kept::Next && block.memfd.capacity() == capacity);
    }

    /// The memfds that were left unpublished.
    pub(super) fn unused(&self) -> Unused {
        self.blocks().unused()
    }

    /// Drops the one of them that was used least recently.
    pub(super) fn give_up_oldest(&self) {
        if let Some(oldest) = self.unused().since {
            self.drop_first(|block| block.unused_since() == Some(oldest));
        }
    }

    /// Drops memfds that were left unpublished some seconds ago. Whether others of them are there.
    pub(super) fn give_back(&self, now: Instant) -> bool {
        let is_idle = |since| now.saturating_duration_since(since) >= IDLE_MAX;
        self.drop_each(|block| block.unused_since().is_some_and(is_idle));
        let blocks = self.blocks();
        let is_left = blocks.unused().bytes > 0;
        if !is_left {
            // Under the lock: the next memfd starts another thread.
            self.gives_back.end();
        }
        is_left
    }

    fn drop_first(&self, is_meant: impl Fn(&Block) -> bool) {
        let mut is_found = false;
        self.drop_each(|block| {
            let is_out = !is_found && is_meant(block);
            is_found |= is_out;
            is_out
        });
    }

    fn drop_each(&self, mut is_out: impl FnMut(&Block) -> bool) {
        let mut blocks = self.blocks();
        let before = blocks.stats.free_bytes;
        let Blocks { by_capacity, stats } = &mut *blocks;
        let mut out = Vec::new();
        by_capacity.retain(|_, same| {
            out.extend(same.extract_if(.., |block| is_out(block)));
            !same.is_empty()
        });
        stats.free -= out.len();
        stats.free_bytes -= out.iter().map(|block| block.memfd.capacity()).sum::<usize>();
        let now = stats.free_bytes;
        // Unmapping takes long: not while the lock is held.
        drop(blocks);
        drop(out);
        self.changed(before, now);
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
