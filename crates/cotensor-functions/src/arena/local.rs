//! Slabs that this end of a connection writes.

use cotensor_client::protocol::provider as p;
use cotensor_core::SegmentMut;
use cotensor_memory::{BlockLimits, Blocks, Slab};
use cotensor_store::Lease;
use rustix::param::page_size;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// The smallest shared slab, in bytes. Each further one is as large as all before it together.
const SHARED_BYTES_MIN: usize = 64 << 10;
/// The most bytes of all shared slabs.
const SHARED_BYTES_MAX: usize = 16 << 20;
/// The most bytes of all blocks.
const BLOCKS_BYTES_MAX: usize = 128 << 20;
/// The most bytes of free blocks.
const FREE_BYTES_MAX: usize = 64 << 20;
/// The most blocks. Each is a descriptor at both ends.
const BLOCKS_MAX: usize = 128;
/// A tensor fills half of its block or more. Nothing counts the rest of the block, and calls with batches of different lengths
/// use the same blocks.
const UNUSED_DIVISOR: usize = 2;

/// The length of a new block for a tensor of `len` bytes: at most a quarter longer, so that slightly longer ones fit, too.
pub(super) fn block_len(len: usize) -> usize {
    len.next_multiple_of((1 << len.max(4).ilog2()) / 4)
}

/// The slabs that this end writes, by number. A number is used once.
pub(super) struct LocalSlabs {
    last: u64,
    /// Slabs that small tensors share.
    pub(super) shared: Vec<(u64, Slab)>,
    /// Slabs of one larger tensor each.
    pub(super) blocks: Blocks<u64>,
    /// Ranges that the other end reads, and how often each was sent.
    sent: HashMap<p::ArenaRange, (Lease, usize)>,
}

impl LocalSlabs {
    /// No slabs. A block that is free for `idle_max` is given back.
    pub(super) fn new(idle_max: Duration) -> Self {
        let limits = BlockLimits {
            bytes_max: BLOCKS_BYTES_MAX,
            free_bytes_max: FREE_BYTES_MAX,
            count_max: BLOCKS_MAX,
            idle_max,
            unused_divisor: UNUSED_DIVISOR,
        };
        Self { last: 0, shared: Vec::new(), blocks: Blocks::new(limits), sent: HashMap::new() }
    }

    /// The number of a new slab.
    pub(super) fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// A range of a shared slab; `None` when none has room.
    pub(super) fn reserve_shared(&self, len: usize) -> Option<Box<dyn SegmentMut>> {
        self.shared.iter().find_map(|(_, slab)| slab.reserve_unzeroed(len).ok())
    }

    fn shared_bytes(&self) -> usize {
        self.shared.iter().map(|(_, slab)| slab.len()).sum()
    }

    /// The bytes of all slabs.
    pub(super) fn bytes(&self) -> u64 {
        let blocks: usize = self.blocks.iter().map(|(_, slab)| slab.len()).sum();
        (self.shared_bytes() + blocks) as u64
    }

    /// The length of a new shared slab for `len` bytes; `None` when the limit leaves no room.
    pub(super) fn room_for_shared(&self, len: usize) -> Option<usize> {
        let all = self.shared_bytes();
        let bytes = all.max(SHARED_BYTES_MIN).max((2 * len).next_multiple_of(page_size()));
        (all + bytes <= SHARED_BYTES_MAX).then_some(bytes)
    }

    /// The range of a tensor in these slabs. Keeps it until the other end has released it. `None` for another tensor.
    pub(super) fn send(&mut self, lease: &Lease) -> Option<p::ArenaRange> {
        let fd = lease.segment().fd()?.as_raw_fd();
        let shared = self.shared.iter().map(|(number, slab)| (*number, slab));
        let (slab, _) = shared.chain(self.blocks.iter()).find(|(_, slab)| slab.fd().as_raw_fd() == fd)?;
        let range = p::ArenaRange { slab, offset: lease.segment().fd_offset() as u64 };
        match self.sent.entry(range) {
            Entry::Occupied(mut sent) => sent.get_mut().1 += 1,
            Entry::Vacant(vacant) => drop(vacant.insert((lease.try_clone().ok()?, 1))),
        }
        Some(range)
    }

    /// Takes out ranges that the other end no longer reads.
    pub(super) fn reclaim(&mut self, ranges: &[p::ArenaRange]) -> Vec<(Lease, usize)> {
        let mut free = Vec::new();
        for range in ranges {
            let Some((_, count)) = self.sent.get_mut(range) else { continue };
            *count -= 1;
            if *count == 0 {
                free.extend(self.sent.remove(range));
            }
        }
        free
    }
}
