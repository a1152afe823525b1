//! Memfds kept warm between uses.

use super::prefault::{Filling, Prefaulter};
use crate::host::MemfdMut;
use crate::mapping::AddressPin;
use cotensor_core::{Device, Memory, MemoryKind, Result, Segment, SegmentMut, padded};
use rustix::param::page_size;
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Memory in memfds of this process alone that were made, or used and given up, before: filling one takes the time of
/// the copy, where a new one costs about three times that for its pages.
///
/// Only memfds that nobody else ever knew come back. A published one is sealed, which nobody can undo, so its pages go
/// when its last holder goes: each publishing uses up what [`prefault`](Self::prefault) made ready. For a row of large
/// segments of one length, the next is made ready by a thread as soon as the last is published. What is to be published
/// again and again in the same memory belongs into a [`Slab`](crate::Slab). Clones are the same pool.
#[derive(Clone)]
pub struct MemfdPool {
    shelf: Arc<FreeBlocks>,
    ahead: Arc<Prefaulter>,
}

/// What a pool has and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Memfds that wait for use.
    pub cached: usize,
    /// Their bytes.
    pub cached_bytes: usize,
    /// How many requests were served by a kept one.
    pub hits: u64,
    /// How many needed a new one.
    pub misses: u64,
}

pub(crate) struct FreeBlocks {
    keep_bytes_max: usize,
    /// A forked child has these very pages: it leaves them to its parent.
    owner: u32,
    blocks: Mutex<Blocks>,
}

#[derive(Default)]
struct Blocks {
    by_capacity: BTreeMap<usize, Vec<Block>>,
    stats: PoolStats,
}

struct Block {
    memfd: MemfdMut,
    /// How many of its first bytes may not be zero.
    stale: usize,
}

impl MemfdPool {
    /// An empty pool that keeps at most `keep_bytes_max` bytes waiting.
    pub fn new(keep_bytes_max: usize) -> Self {
        let owner = std::process::id();
        Self { shelf: Arc::new(FreeBlocks { keep_bytes_max, owner, blocks: Mutex::default() }), ahead: Arc::default() }
    }

    /// Makes memfds for `count` segments of `len` bytes ready, or as many as the pool may keep; returns how many. To be
    /// called when there is nothing better to do: it takes several times as long as filling them later.
    ///
    /// # Errors
    /// `Invalid` for a length that cannot exist, `Io` when the system has no more memory.
    pub fn prefault(&self, len: usize, count: usize) -> Result<usize> {
        for done in 0..count {
            let memfd = MemfdMut::create(capacity(len)?)?;
            memfd.prefault()?;
            if !self.shelf.keep(Block { memfd, stale: 0 }) {
                return Ok(done);
            }
        }
        Ok(count)
    }

    /// What waits, and how often that helped.
    pub fn stats(&self) -> PoolStats {
        self.shelf.blocks().stats
    }

    fn take(&self, len: usize) -> Result<PooledMemfd> {
        let (wanted, shelf) = (capacity(len)?, Arc::clone(&self.shelf));
        self.ahead.wait_for(&shelf, wanted);
        let Block { mut memfd, stale } = match self.shelf.take(wanted) {
            Some(block) => block,
            None => Block { memfd: MemfdMut::create(wanted)?, stale: 0 },
        };
        let filling = self.ahead.asked(&self.shelf, wanted);
        memfd.resize(len);
        Ok(PooledMemfd { memfd: Some(memfd), stale, exposed: None, shelf, _filling: filling })
    }

    fn take_clean(&self, len: usize) -> Result<PooledMemfd> {
        let mut lent = self.take(len)?;
        let stale = lent.stale.min(len);
        if let Some(bytes) = lent.bytes_mut() {
            bytes[..stale].fill(0);
        }
        Ok(lent)
    }
}

/// Whole pages, as the kernel gives them.
fn capacity(len: usize) -> Result<usize> {
    padded(len)?;
    padded(len.next_multiple_of(page_size()))
}

impl FreeBlocks {
    fn blocks(&self) -> MutexGuard<'_, Blocks> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this is the process that made it, and no child that was forked.
    pub(crate) fn is_ours(&self) -> bool {
        self.owner == std::process::id()
    }

    /// Whether a memfd may wait here.
    pub(crate) fn has_room_for(&self, capacity: usize) -> bool {
        self.is_ours() && capacity <= self.keep_bytes_max.saturating_sub(self.blocks().stats.cached_bytes)
    }

    /// Whether one of exactly that many bytes waits.
    pub(crate) fn has_warm(&self, capacity: usize) -> bool {
        self.blocks().by_capacity.contains_key(&capacity)
    }

    pub(crate) fn keep_warm(&self, memfd: MemfdMut) {
        self.keep(Block { memfd, stale: 0 });
    }

    /// Gives one of exactly that many bytes back that was never used.
    pub(crate) fn drop_warm(&self, capacity: usize) {
        let mut blocks = self.blocks();
        let Some(same) = blocks.by_capacity.get_mut(&capacity) else { return };
        let unused = same.iter().position(|block| block.stale == 0).map(|at| same.remove(at));
        if same.is_empty() {
            blocks.by_capacity.remove(&capacity);
        }
        if unused.is_some() {
            blocks.stats.cached -= 1;
            blocks.stats.cached_bytes -= capacity;
        }
        drop(blocks);
        drop(unused);
    }

    /// The smallest that is long enough, unless it is more than a quarter longer: publishing gives the rest away.
    fn take(&self, wanted: usize) -> Option<Block> {
        let mut blocks = self.blocks();
        let fitting = blocks.by_capacity.range_mut(wanted..=wanted.saturating_add(wanted / 4)).next();
        let found = fitting.filter(|_| self.is_ours());
        let found = found.and_then(|(&capacity, same)| Some((capacity, same.pop()?, same.is_empty())));
        let Some((capacity, block, last)) = found else {
            blocks.stats.misses += 1;
            return None;
        };
        if last {
            blocks.by_capacity.remove(&capacity);
        }
        blocks.stats.hits += 1;
        blocks.stats.cached -= 1;
        blocks.stats.cached_bytes -= capacity;
        Some(block)
    }

    /// Whether there was room for it.
    fn keep(&self, block: Block) -> bool {
        let capacity = block.memfd.capacity();
        let mut blocks = self.blocks();
        let total = blocks.stats.cached_bytes.saturating_add(capacity);
        let room = capacity > 0 && total <= self.keep_bytes_max && self.is_ours();
        if room {
            blocks.stats.cached += 1;
            blocks.stats.cached_bytes = total;
            blocks.by_capacity.entry(capacity).or_default().push(block);
        }
        room
    }
}

impl Memory for MemfdPool {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Memfd
    }

    fn device(&self) -> Device {
        Device::Cpu
    }

    fn reserve(&self, len: usize) -> Result<Box<dyn SegmentMut>> {
        Ok(Box::new(self.take_clean(len)?))
    }

    fn reserve_aliased(&self, len: usize) -> Result<Box<dyn SegmentMut>> {
        let mut lent = self.take_clean(len)?;
        if let Some(memfd) = &lent.memfd {
            memfd.inherit_on_fork()?;
        }
        lent.exposed = Some(AddressPin::default());
        Ok(Box::new(lent))
    }

    fn prefault(&self, len: usize, count: usize) -> Result<usize> {
        self.prefault(len, count)
    }

    fn copy_of(&self, source: &[u8]) -> Result<Box<dyn SegmentMut>> {
        let mut lent = self.take(source.len())?;
        lent.write_at(0, source)?;
        Ok(Box::new(lent))
    }
}

/// A memfd of the pool in use; it goes back when it is dropped unpublished, unless others knew it.
struct PooledMemfd {
    /// Always there until it is published.
    memfd: Option<MemfdMut>,
    stale: usize,
    /// For others in this process who may know the address.
    exposed: Option<AddressPin>,
    shelf: Arc<FreeBlocks>,
    /// Told when this is published or given up.
    _filling: Option<Filling>,
}

impl Drop for PooledMemfd {
    fn drop(&mut self) {
        if let Some(memfd) = self.memfd.take() {
            // Others may know it, and children that were forked meanwhile have it.
            if let Some(address) = &self.exposed {
                return address.retire(memfd.into_mapping());
            }
            let stale = self.stale.max(memfd.len());
            self.shelf.keep(Block { memfd, stale });
        }
    }
}

impl SegmentMut for PooledMemfd {
    fn len(&self) -> usize {
        self.memfd.as_ref().map_or(0, SegmentMut::len)
    }

    fn bytes(&self) -> Option<&[u8]> {
        self.memfd.as_ref()?.bytes()
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        self.memfd.as_mut()?.bytes_mut()
    }

    fn write_at(&mut self, offset: usize, source: &[u8]) -> Result<()> {
        self.memfd.as_mut().map_or(Ok(()), |memfd| memfd.write_at(offset, source))
    }

    fn pin_address(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.exposed.as_ref().map(AddressPin::handle)
    }

    fn freeze(mut self: Box<Self>) -> Result<Arc<dyn Segment>> {
        let memfd = self.memfd.take().ok_or_else(|| cotensor_core::Error::invalid("published already"))?;
        let sealed = match &self.exposed {
            Some(address) => memfd.seal_aliased(address)?,
            None => memfd.seal()?,
        };
        Ok(sealed.listed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::fstat;

    #[test]
    fn conforms() {
        let pool = MemfdPool::new(1 << 24);
        cotensor_core::testing::conformance(&pool);
        assert!(pool.stats().hits > 0, "the suite met used memory");
    }

    #[test]
    fn what_is_given_up_is_used_again_and_what_is_published_never() {
        let pool = MemfdPool::new(1 << 20);
        assert_eq!(pool.prefault(100_000, 2).unwrap(), 2);
        let first = pool.reserve(100_000).unwrap();
        let address = first.bytes().unwrap().as_ptr();
        drop(first);
        assert_eq!(
            pool.stats(),
            PoolStats { cached: 2, cached_bytes: 2 * capacity(100_000).unwrap(), hits: 1, misses: 0 }
        );

        let published = pool.copy_of(&[1; 90_000]).unwrap().freeze().unwrap();
        assert_eq!(published.bytes().unwrap().as_ptr(), address, "the last one used is the warmest");
        let fd = published.fd().unwrap().try_clone_to_owned().unwrap();
        assert_eq!(fstat(&fd).unwrap().st_size, 90_000, "a receiver sees the tensor and nothing else");
        drop(published);
        assert_eq!((pool.stats().cached, pool.stats().hits), (1, 2));
        let second = pool.copy_of(&[2; 90_000]).unwrap().freeze().unwrap();
        let third = pool.copy_of(&[3; 90_000]).unwrap().freeze().unwrap();
        assert_eq!(pool.stats(), PoolStats { cached: 0, cached_bytes: 0, hits: 3, misses: 1 });
        let inodes = [fd.try_clone().unwrap(), second.fd().unwrap().try_clone_to_owned().unwrap()];
        assert_ne!(fstat(&inodes[0]).unwrap().st_ino, fstat(&inodes[1]).unwrap().st_ino);
        assert_eq!(third.bytes().unwrap(), [3; 90_000]);
        let mut old = [0; 10];
        rustix::io::pread(&fd, &mut old, 0).unwrap();
        assert_eq!(old, [1; 10], "a holder keeps what he received");
    }

    #[test]
    fn it_keeps_no_more_than_allowed_and_wastes_little() {
        let pool = MemfdPool::new(300_000);
        assert_eq!(pool.prefault(100_000, 5).unwrap(), 2);
        drop([pool.reserve(300_000).unwrap(), pool.reserve(50_000).unwrap()]);
        let stats = pool.stats();
        assert!(stats.cached_bytes <= 300_000 && stats.hits == 0, "{stats:?}");
        assert_eq!(pool.prefault(usize::MAX, 1).err().unwrap().kind(), cotensor_core::ErrorKind::Invalid);
    }

    #[test]
    fn a_forked_child_leaves_its_parents_memory_alone() {
        let mut pool = MemfdPool::new(1 << 20);
        pool.prefault(10_000, 1).unwrap();
        // As after a fork: the same pool in another process.
        Arc::get_mut(&mut pool.shelf).unwrap().owner += 1;
        drop(pool.reserve(10_000).unwrap());
        assert_eq!((pool.stats().hits, pool.stats().cached), (0, 1));
    }
}
