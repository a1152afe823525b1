//! Slabs of one segment each, which are used again.

use super::Unused;
use crate::host::Slab;
use cotensor_core::{Result, SegmentMut, padded};
use rustix::param::page_size;
use std::time::{Duration, Instant};

/// The largest segment that lies in a block, in bytes. For larger ones, the new pages take little more time than the copy.
pub const BLOCK_BYTES_MAX: usize = 64 << 20;

/// How many blocks a producer has.
#[derive(Clone, Copy, Debug)]
pub struct BlockLimits {
    /// The most bytes of all blocks.
    pub bytes_max: usize,
    /// The most bytes of free blocks with which another free one is made.
    pub free_bytes_max: usize,
    /// The most blocks.
    pub count_max: usize,
    /// After this time a free block is given back.
    pub idle_max: Duration,
    /// A segment leaves at most this part of its block unused: the divisor, 8 for an eighth.
    pub unused_divisor: usize,
}

impl Default for BlockLimits {
    fn default() -> Self {
        let idle_max = Duration::from_secs(5);
        Self { bytes_max: 256 << 20, free_bytes_max: 64 << 20, count_max: 256, idle_max, unused_divisor: 8 }
    }
}

/// Slabs of one segment each. A segment in a block that was used before takes the time of the copy; new memory takes about ten
/// times as long, because of its pages.
///
/// A block is free when its segment is dropped. A published segment is therefore kept until no process reads it any more, as with
/// every [`Slab`]. `K` is the producer's name of a block.
#[derive(Debug)]
pub struct Blocks<K> {
    limits: BlockLimits,
    blocks: Vec<Block<K>>,
}

struct Block<K> {
    key: K,
    slab: Slab,
    /// When it was first seen without a segment.
    free_since: Option<Instant>,
    /// Whether it has had no segment yet.
    is_new: bool,
    /// Whether it is not given back before its first use.
    stays: bool,
}

impl<K: std::fmt::Debug> std::fmt::Debug for Block<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}: {} bytes, free since {:?}", self.key, self.slab.len(), self.free_since)
    }
}

impl<K> Block<K> {
    fn is_free(&self) -> bool {
        self.slab.is_unused()
    }
}

impl<K: Copy> Blocks<K> {
    /// No blocks.
    pub fn new(limits: BlockLimits) -> Self {
        Self { limits, blocks: Vec::new() }
    }

    /// A segment of `len` bytes in the smallest free block of which it leaves no more unused than the limit, and whether the block is new; `None`
    /// without one. The bytes have values of earlier segments.
    pub fn reserve(&mut self, len: usize) -> Option<(K, Box<dyn SegmentMut>, bool)> {
        let unused_divisor = self.limits.unused_divisor;
        let fits = |block: &&mut Block<K>| {
            let room = block.slab.len();
            len <= room && room - len <= room / unused_divisor && block.is_free()
        };
        let block = self.blocks.iter_mut().filter(fits).min_by_key(|block| block.slab.len())?;
        let segment = block.slab.reserve_unzeroed(len).ok()?;
        (block.free_since, block.stays) = (None, false);
        Some((block.key, segment, std::mem::take(&mut block.is_new)))
    }

    /// The length of a new block for a segment of `len` bytes; `None` when the blocks in use leave no room.
    ///
    /// # Errors
    /// `Invalid` for a length that cannot exist.
    pub fn room_for(&mut self, len: usize, now: Instant) -> Result<Option<usize>> {
        let wanted = padded(len.next_multiple_of(page_size()))?;
        self.note_free(now);
        let in_use = self.blocks.iter().filter(|block| block.free_since.is_none());
        let (bytes, count) = in_use.fold((0, 0), |(bytes, count), block| (bytes + block.slab.len(), count + 1));
        let BlockLimits { bytes_max, count_max, .. } = self.limits;
        let has_room = len <= BLOCK_BYTES_MAX && count < count_max && wanted <= bytes_max.saturating_sub(bytes);
        Ok(has_room.then_some(wanted))
    }

    /// Takes out free blocks until one of `bytes` bytes can be added: those that were used least recently first. The caller closes them.
    pub fn make_room(&mut self, bytes: usize) -> Vec<(K, Slab)> {
        let mut closed = Vec::new();
        while self.bytes() + bytes > self.limits.bytes_max || self.blocks.len() >= self.limits.count_max {
            let Some(block) = self.take_oldest_of(Block::is_free) else { break };
            closed.push(block);
        }
        closed
    }

    /// Adds a block. Returns a segment of `len` bytes in it.
    ///
    /// # Errors
    /// As [`Slab::reserve_unzeroed`].
    pub fn add(&mut self, key: K, slab: Slab, len: usize) -> Result<Box<dyn SegmentMut>> {
        let segment = slab.reserve_unzeroed(len)?;
        self.blocks.push(Block { key, slab, free_since: None, is_new: false, stays: false });
        Ok(segment)
    }

    /// The length of a free block for a later segment of `len` bytes; `None` when the limits leave no room for it.
    ///
    /// # Errors
    /// `Invalid` for a length that cannot exist.
    pub fn room_for_free(&self, len: usize) -> Result<Option<usize>> {
        let wanted = padded(len.next_multiple_of(page_size()))?;
        let BlockLimits { bytes_max, free_bytes_max, count_max, .. } = self.limits;
        let has_room = len <= BLOCK_BYTES_MAX
            && self.blocks.len() < count_max
            && wanted <= bytes_max.saturating_sub(self.bytes())
            && wanted <= free_bytes_max.saturating_sub(self.free_bytes());
        Ok(has_room.then_some(wanted))
    }

    /// Adds a free block. With `stays`, it is not given back before its first use, however long that takes.
    pub fn add_free(&mut self, key: K, slab: Slab, stays: bool) {
        self.blocks.push(Block { key, slab, free_since: None, is_new: true, stays });
    }

    /// Takes out free blocks that were not used for so long that they are given back. The caller closes them.
    pub fn take_idle(&mut self, now: Instant) -> Vec<(K, Slab)> {
        self.note_free(now);
        let idle_max = self.limits.idle_max;
        let is_idle =
            |block: &mut Block<K>| !block.stays && block.free_since.is_some_and(|since| now - since >= idle_max);
        self.blocks.extract_if(.., is_idle).map(|block| (block.key, block.slab)).collect()
    }

    /// The free blocks, without those that stay until their first use.
    pub fn unused(&mut self, now: Instant) -> Unused {
        self.note_free(now);
        let free = self.blocks.iter().filter(|block| !block.stays);
        free.filter_map(|block| Some((block.slab.len(), block.free_since?))).collect()
    }

    /// Takes out the block of [`unused`](Self::unused) that was used least recently. The caller closes it.
    pub fn take_oldest(&mut self) -> Option<(K, Slab)> {
        self.take_oldest_of(|block| block.is_free() && !block.stays)
    }

    /// The bytes of all blocks.
    pub fn bytes(&self) -> usize {
        self.blocks.iter().map(|block| block.slab.len()).sum()
    }

    /// The bytes of free blocks.
    pub fn free_bytes(&self) -> usize {
        self.blocks.iter().filter(|block| block.is_free()).map(|block| block.slab.len()).sum()
    }

    /// Whether there is a block that is given back once it is idle.
    pub fn has_transient(&self) -> bool {
        self.blocks.iter().any(|block| !block.stays)
    }

    /// The blocks.
    pub fn iter(&self) -> impl Iterator<Item = (K, &Slab)> {
        self.blocks.iter().map(|block| (block.key, &block.slab))
    }

    /// Removes blocks for which `keep` is false: they are never used again.
    pub fn retain(&mut self, mut keep: impl FnMut(K) -> bool) {
        self.blocks.retain(|block| keep(block.key));
    }

    fn note_free(&mut self, now: Instant) {
        for block in &mut self.blocks {
            block.free_since = block.is_free().then(|| block.free_since.unwrap_or(now));
        }
    }

    fn take_oldest_of(&mut self, is_meant: impl Fn(&Block<K>) -> bool) -> Option<(K, Slab)> {
        let meant = self.blocks.iter().enumerate().filter(|(_, block)| is_meant(block));
        let (at, _) = meant.min_by_key(|(_, block)| block.free_since)?;
        let block = self.blocks.remove(at);
        Some((block.key, block.slab))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_core::Segment;
    use std::sync::Arc;

    const LIMITS: BlockLimits = BlockLimits {
        bytes_max: 1 << 20,
        free_bytes_max: 600 << 10,
        count_max: 4,
        idle_max: Duration::from_secs(10),
        unused_divisor: 8,
    };

    /// Puts `len` bytes into a free block, or a new one with this key.
    fn put(blocks: &mut Blocks<u32>, key: u32, len: usize, now: Instant) -> Option<(u32, Arc<dyn Segment>)> {
        let (key, mut segment) = match blocks.reserve(len) {
            Some((key, segment, _)) => (key, segment),
            None => {
                let bytes = blocks.room_for(len, now).unwrap()?;
                blocks.make_room(bytes);
                (key, blocks.add(key, Slab::create(bytes).unwrap(), len).unwrap())
            }
        };
        segment.write_at(0, &vec![key as u8; len]).unwrap();
        Some((key, segment.freeze().unwrap()))
    }

    #[test]
    fn free_block_is_used_again_for_nearly_the_same_length() {
        let (mut blocks, now) = (Blocks::new(LIMITS), Instant::now());
        let first = put(&mut blocks, 1, 300_000, now).unwrap();
        let second = put(&mut blocks, 2, 300_000, now).unwrap();
        assert_eq!((first.0, second.0), (1, 2), "the first one is in use");
        let address = first.1.bytes().unwrap().as_ptr();
        drop(first);
        let shorter = put(&mut blocks, 3, 280_000, now).unwrap();
        assert_eq!((shorter.0, shorter.1.bytes().unwrap().as_ptr()), (1, address));
        assert!(shorter.1.bytes().unwrap().iter().all(|&byte| byte == 1));
        drop(shorter);
        assert_eq!(put(&mut blocks, 3, 100_000, now).unwrap().0, 3, "it would waste two thirds of the first one");
        assert!(second.1.bytes().unwrap().iter().all(|&byte| byte == 2));
    }

    #[test]
    fn idle_blocks_are_given_back_and_used_ones_stay() {
        let (mut blocks, start) = (Blocks::new(LIMITS), Instant::now());
        let held = put(&mut blocks, 1, 100_000, start).unwrap();
        drop(put(&mut blocks, 2, 200_000, start).unwrap());
        assert!(blocks.take_idle(start).is_empty());
        assert_eq!(blocks.free_bytes(), 200_000_usize.next_multiple_of(page_size()));
        // Used again meanwhile: the time begins anew.
        drop(put(&mut blocks, 3, 200_000, start + Duration::from_secs(5)).unwrap());
        assert!(blocks.take_idle(start + Duration::from_secs(6)).is_empty());
        assert!(blocks.take_idle(start + Duration::from_secs(15)).is_empty());
        let idle = blocks.take_idle(start + Duration::from_secs(16));
        assert_eq!(idle.iter().map(|(key, _)| *key).collect::<Vec<_>>(), [2]);
        drop(held);
        assert!(blocks.take_idle(start + Duration::from_secs(100)).is_empty(), "free from now on");
        assert_eq!(blocks.take_idle(start + Duration::from_secs(110)).len(), 1);
        assert!(blocks.blocks.is_empty());
    }

    #[test]
    fn block_that_was_used_least_recently_is_given_up_first() {
        let (mut blocks, start) = (Blocks::new(LIMITS), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let len = |bytes: usize| bytes.next_multiple_of(page_size());
        blocks.add_free(9, Slab::create(len(50_000)).unwrap(), true);
        assert_eq!(blocks.unused(start), Unused::default(), "one that stays does not count");
        drop(put(&mut blocks, 1, 100_000, start).unwrap());
        assert_eq!(blocks.unused(at(1)), Unused { bytes: len(100_000), since: Some(at(1)) });
        drop(put(&mut blocks, 2, 200_000, at(2)).unwrap());
        assert_eq!(blocks.unused(at(3)).bytes, len(100_000) + len(200_000));
        // Used again, the first one is the newest.
        drop(put(&mut blocks, 3, 100_000, at(4)).unwrap());
        assert_eq!(blocks.unused(at(5)).since, Some(at(3)));
        let oldest = |blocks: &mut Blocks<u32>| blocks.take_oldest().map(|(key, _)| key);
        assert_eq!([oldest(&mut blocks), oldest(&mut blocks), oldest(&mut blocks)], [Some(2), Some(1), None]);
    }

    #[test]
    fn prefaulted_block_stays_until_its_first_use() {
        let (mut blocks, start) = (Blocks::new(LIMITS), Instant::now());
        let later = start + 100 * LIMITS.idle_max;
        for key in 0..2 {
            let bytes = blocks.room_for_free(250_000).unwrap().unwrap();
            blocks.add_free(key, Slab::create(bytes).unwrap(), true);
        }
        assert_eq!(blocks.room_for_free(250_000).unwrap(), None, "the limit of free bytes");
        assert!(blocks.take_idle(later).is_empty() && !blocks.has_transient());
        let first = put(&mut blocks, 7, 250_000, later).unwrap();
        assert!(first.0 < 2 && blocks.has_transient());
        drop(first);
        assert!(blocks.take_idle(later).is_empty());
        assert_eq!(blocks.take_idle(later + LIMITS.idle_max).len(), 1, "the one that was used");
        assert!(!blocks.has_transient() && blocks.free_bytes() > 0);
    }

    #[test]
    fn limits_hold() {
        let (mut blocks, now) = (Blocks::new(LIMITS), Instant::now());
        let held: Vec<_> = (0..3).map(|key| put(&mut blocks, key, 300_000, now).unwrap()).collect();
        assert!(put(&mut blocks, 3, 300_000, now).is_none(), "the bytes of all blocks");
        assert!(put(&mut blocks, 3, BLOCK_BYTES_MAX + 1, now).is_none());
        drop(held);
        // Free ones make room for another length.
        let room = blocks.room_for(900_000, now).unwrap().unwrap();
        assert_eq!((room, blocks.make_room(room).len()), (900_000_usize.next_multiple_of(page_size()), 3));
        drop((0..3).map(|key| put(&mut blocks, key, 250_000, now).unwrap()).collect::<Vec<_>>());
        assert!(blocks.take_idle(now).is_empty());
        assert_eq!(blocks.take_idle(now + LIMITS.idle_max).len(), 3);
    }
}
