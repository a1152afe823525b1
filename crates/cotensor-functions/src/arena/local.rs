//! Slabs that this end of a connection writes.

use cotensor_client::protocol::provider as p;
use cotensor_core::SegmentMut;
use cotensor_memory::{BlockLimits, Blocks, Slab, Unused};
use cotensor_store::Lease;
use rustix::param::page_size;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// The smallest shared slab, in bytes. Each further one is as large as all before it together.
const SHARED_BYTES_MIN: usize = 64 << 10;
/// The most bytes of all shared slabs.
const SHARED_BYTES_MAX: usize = 16 << 20;
/// The most bytes of all blocks.
const BLOCKS_BYTES_MAX: usize = 128 << 20;
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
    idle_max: Duration,
    /// Slabs that small tensors share.
    shared: Vec<SharedSlab>,
    /// Slabs of one larger tensor each.
    pub(super) blocks: Blocks<u64>,
    /// Ranges that the other end reads, and how often each was sent.
    sent: HashMap<p::ArenaRange, (Lease, usize)>,
}

struct SharedSlab {
    number: u64,
    slab: Slab,
    /// When it was first seen without a tensor.
    free_since: Option<Instant>,
}

impl LocalSlabs {
    /// No slabs. One that is free for `idle_max` is given back.
    pub(super) fn new(idle_max: Duration) -> Self {
        let limits = BlockLimits {
            bytes_max: BLOCKS_BYTES_MAX,
            // The client bounds the free ones of all its parts.
            free_bytes_max: BLOCKS_BYTES_MAX,
            count_max: BLOCKS_MAX,
            idle_max,
            unused_divisor: UNUSED_DIVISOR,
        };
        Self { last: 0, idle_max, shared: Vec::new(), blocks: Blocks::new(limits), sent: HashMap::new() }
    }

    /// The number of a new slab.
    pub(super) fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// A range of a shared slab; `None` when none has room.
    pub(super) fn reserve_shared(&mut self, len: usize) -> Option<Box<dyn SegmentMut>> {
        self.shared.iter_mut().find_map(|shared| {
            let segment = shared.slab.reserve_unzeroed(len).ok()?;
            shared.free_since = None;
            Some(segment)
        })
    }

    /// Adds a shared slab.
    pub(super) fn add_shared(&mut self, number: u64, slab: Slab) {
        self.shared.push(SharedSlab { number, slab, free_since: None });
    }

    fn shared_bytes(&self) -> usize {
        self.shared.iter().map(|shared| shared.slab.len()).sum()
    }

    /// Whether there is a slab.
    pub(super) fn has_slabs(&self) -> bool {
        !self.shared.is_empty() || self.blocks.has_transient()
    }

    /// The slabs without a tensor.
    pub(super) fn unused(&mut self, now: Instant) -> Unused {
        self.note_free(now);
        let shared = self.shared.iter().filter_map(|shared| Some((shared.slab.len(), shared.free_since?)));
        shared.collect::<Unused>().and(self.blocks.unused(now))
    }

    /// Takes out the slab without a tensor that was used least recently. The caller closes it.
    pub(super) fn take_oldest(&mut self, now: Instant) -> Option<(u64, Slab)> {
        let oldest = self.unused(now).since?;
        let is_oldest = |shared: &SharedSlab| shared.free_since == Some(oldest);
        match self.shared.iter().position(is_oldest) {
            Some(at) => Some(self.shared.remove(at).into_parts()),
            None => self.blocks.take_oldest(),
        }
    }

    /// Takes out slabs that were not used for so long that they are given back. The caller closes them.
    pub(super) fn take_idle(&mut self, now: Instant) -> Vec<(u64, Slab)> {
        self.note_free(now);
        let idle_max = self.idle_max;
        let is_idle =
            |shared: &mut SharedSlab| shared.free_since.is_some_and(|since| now.duration_since(since) >= idle_max);
        let shared = self.shared.extract_if(.., is_idle).map(SharedSlab::into_parts);
        shared.chain(self.blocks.take_idle(now)).collect()
    }

    fn note_free(&mut self, now: Instant) {
        for shared in &mut self.shared {
            shared.free_since = shared.slab.is_unused().then(|| shared.free_since.unwrap_or(now));
        }
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
        let shared = self.shared.iter().map(|shared| (shared.number, &shared.slab));
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

impl SharedSlab {
    fn into_parts(self) -> (u64, Slab) {
        (self.number, self.slab)
    }
}
