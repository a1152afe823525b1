//! A pool of memfds.

use super::Unused;
use super::free_blocks::{Block, FreeBlocks, Kept, PoolStats};
use super::prefault::{Filling, Prefaulter, Timing};
use crate::host::{MemfdMut, import};
use cotensor_core::{Device, Error, Memory, MemoryKind, Result, Segment, SegmentMut, padded};
use rustix::param::page_size;
use std::any::Any;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

/// Memory in memfds that were prefaulted, or used and abandoned, before. Filling one takes the time of the copy; a new
/// one takes about three times as long, because of its pages.
///
/// Only unpublished memfds return to the pool. A published one is sealed for good, so its pages are freed with its last
/// holder. Each publication thus uses up one memfd that [`prefault`](Memory::prefault) created. While large segments of
/// equal length are published one after another, a thread prefaults the next memfd after each publication. Memory that
/// is published repeatedly belongs into a [`Slab`](crate::Slab).
///
/// At most 64 MiB that were left unpublished are kept, for five to seven seconds. What the program has prefaulted stays until its first
/// use.
///
/// Clones are the same pool.
#[derive(Clone)]
pub struct MemfdPool {
    free: Arc<FreeBlocks>,
    prefaulter: Arc<Prefaulter>,
}

impl MemfdPool {
    /// An empty pool that keeps at most `free_bytes_max` bytes free.
    pub fn new(free_bytes_max: usize) -> Self {
        Self::with_timing(free_bytes_max, Timing::default())
    }

    fn with_timing(free_bytes_max: usize, timing: Timing) -> Self {
        Self { free: Arc::new(FreeBlocks::new(free_bytes_max)), prefaulter: Arc::new(Prefaulter::new(timing)) }
    }

    /// The state of the pool and its counters.
    pub fn stats(&self) -> PoolStats {
        self.free.stats()
    }

    /// Calls `call` with the bytes of the free memfds before and after each change, from any thread. The first `call` stays.
    pub fn on_change(&self, call: impl Fn(usize, usize) + Send + Sync + 'static) {
        self.free.on_change(Box::new(call));
    }

    /// The memory that was left unpublished.
    pub fn unused(&self) -> Unused {
        self.free.unused()
    }

    /// Drops the memfd of [`unused`](Self::unused) that was used least recently.
    pub fn give_up_oldest(&self) {
        self.free.give_up_oldest();
    }

    fn take(&self, len: usize) -> Result<PooledMemfd> {
        let wanted = capacity(len)?;
        self.prefaulter.wait_for(&self.free, wanted);
        let (mut memfd, stale) = match self.free.take(wanted) {
            Some(Block { memfd, stale, .. }) => (memfd, stale),
            None => (MemfdMut::create_to_fill(wanted)?, 0),
        };
        let filling = self.prefaulter.request(&self.free, wanted);
        memfd.resize(len);
        Ok(PooledMemfd { memfd: Some(memfd), stale, free: Arc::clone(&self.free), _filling: filling })
    }

    fn take_zeroed(&self, len: usize) -> Result<PooledMemfd> {
        let mut pooled = self.take(len)?;
        let stale = pooled.stale.min(len);
        // A new memfd gets its memory when it is filled.
        if stale > 0
            && let Some(bytes) = pooled.bytes_mut()
        {
            bytes[..stale].fill(0);
        }
        Ok(pooled)
    }
}

/// Whole pages.
fn capacity(len: usize) -> Result<usize> {
    padded(len)?;
    padded(len.next_multiple_of(page_size()))
}

impl Memory for MemfdPool {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Memfd
    }

    fn device(&self) -> Device {
        Device::Cpu
    }

    fn reserve(&self, len: usize) -> Result<Box<dyn SegmentMut>> {
        Ok(Box::new(self.take_zeroed(len)?))
    }

    fn reserve_aliased(&self, len: usize) -> Result<Box<dyn SegmentMut>> {
        let mut pooled = self.take_zeroed(len)?;
        pooled.memfd = pooled.memfd.take().map(MemfdMut::into_aliased).transpose()?;
        Ok(Box::new(pooled))
    }

    /// Takes several times as long as filling the memfds, so call it while the program is idle.
    ///
    /// # Errors
    /// `Invalid` for a length that cannot exist, `OverBudget` when the system's memory or this process's descriptors do
    /// not suffice, `Io`.
    fn prefault(&self, len: usize, count: usize) -> Result<usize> {
        for done in 0..count {
            let memfd = MemfdMut::create(capacity(len)?)?;
            memfd.prefault()?;
            if !self.free.put(Block { memfd, stale: 0, kept: Kept::Prefaulted }) {
                return Ok(done);
            }
        }
        Ok(count)
    }

    fn copy_of(&self, source: &[u8]) -> Result<Box<dyn SegmentMut>> {
        let mut pooled = self.take(source.len())?;
        pooled.write_at(0, source)?;
        Ok(Box::new(pooled))
    }

    fn import(&self, fd: OwnedFd, len: usize, kind: MemoryKind) -> Result<Arc<dyn Segment>> {
        import(fd, len, kind)
    }
}

/// A memfd of the pool in use. If it is dropped unpublished, it returns to the pool, unless other code may know its
/// address.
struct PooledMemfd {
    /// `None` once it is published.
    memfd: Option<MemfdMut>,
    /// The number of leading bytes that may not be zero.
    stale: usize,
    free: Arc<FreeBlocks>,
    /// Ends when the memfd is published or dropped.
    _filling: Option<Filling>,
}

impl Drop for PooledMemfd {
    fn drop(&mut self) {
        // Code that keeps the address of an aliased memfd, and children that inherited it, may still write it.
        if let Some(memfd) = self.memfd.take().filter(|memfd| !memfd.is_aliased() && memfd.is_backed()) {
            let stale = self.stale.max(memfd.len());
            self.free.put(Block { memfd, stale, kept: Kept::Unpublished(Instant::now()) });
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

    fn unpopulated_address(&mut self) -> Option<NonNull<u8>> {
        self.memfd.as_mut()?.unpopulated_address()
    }

    fn populate(&self, range: Range<usize>) -> Result<()> {
        self.memfd.as_ref().map_or(Ok(()), |memfd| memfd.populate(range))
    }

    fn write_at(&mut self, offset: usize, source: &[u8]) -> Result<()> {
        self.memfd.as_mut().map_or(Ok(()), |memfd| memfd.write_at(offset, source))
    }

    fn pin_address(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.memfd.as_ref()?.pin_address()
    }

    fn writable_fd(&self) -> Option<BorrowedFd<'_>> {
        self.memfd.as_ref()?.writable_fd()
    }

    fn freeze(mut self: Box<Self>) -> Result<Arc<dyn Segment>> {
        let memfd = self.memfd.take().ok_or_else(|| Error::invalid("published already"))?;
        Ok(memfd.seal()?.register())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_core::ErrorKind;
    use rustix::fs::fstat;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    const NEVER: Duration = Duration::from_secs(1 << 40);
    /// A series has no longest gap, no memfd is prefaulted while another is being filled, and prefaulted memfds are
    /// kept.
    const UNLIMITED: Timing = Timing { gap_max: NEVER, filling_max: NEVER, unused_max: NEVER };

    fn publish(pool: &MemfdPool, len: usize, byte: u8) -> Arc<dyn Segment> {
        pool.copy_of(&vec![byte; len]).unwrap().freeze().unwrap()
    }

    #[test]
    fn pool_conforms() {
        let pool = MemfdPool::new(1 << 24);
        cotensor_core::testing::conformance(&pool);
        cotensor_core::testing::import_conformance(&pool);
        assert!(pool.stats().hits > 0, "the suite met reused memory");
    }

    #[test]
    fn abandoned_memfd_is_reused_and_published_memfd_is_not() {
        let pool = MemfdPool::new(1 << 20);
        assert_eq!(pool.prefault(100_000, 2).unwrap(), 2);
        let first = pool.reserve(100_000).unwrap();
        let address = first.bytes().unwrap().as_ptr();
        drop(first);
        let free_bytes = 2 * capacity(100_000).unwrap();
        assert_eq!(pool.stats(), PoolStats { free: 2, free_bytes, hits: 1, misses: 0 });

        let published = publish(&pool, 90_000, 1);
        assert_eq!(published.bytes().unwrap().as_ptr(), address, "the most recently used one");
        let fd = published.fd().unwrap().try_clone_to_owned().unwrap();
        assert_eq!(fstat(&fd).unwrap().st_size, 90_000, "a receiver sees the tensor and nothing else");
        drop(published);
        assert_eq!((pool.stats().free, pool.stats().hits), (1, 2));
        let (second, third) = (publish(&pool, 90_000, 2), publish(&pool, 90_000, 3));
        assert_eq!(pool.stats(), PoolStats { free: 0, free_bytes: 0, hits: 3, misses: 1 });
        assert_ne!(fstat(&fd).unwrap().st_ino, fstat(second.fd().unwrap()).unwrap().st_ino);
        assert_eq!(third.bytes().unwrap(), [3; 90_000]);
        let mut old = [0; 10];
        rustix::io::pread(&fd, &mut old, 0).unwrap();
        assert_eq!(old, [1; 10], "a holder keeps the bytes that it received");
    }

    #[test]
    fn pool_keeps_at_most_its_limit_and_takes_no_much_longer_memfd() {
        let pool = MemfdPool::new(300_000);
        assert_eq!(pool.prefault(100_000, 5).unwrap(), 2);
        drop([pool.reserve(300_000).unwrap(), pool.reserve(50_000).unwrap()]);
        let stats = pool.stats();
        assert!(stats.free_bytes <= 300_000 && stats.hits == 0, "{stats:?}");
        assert_eq!(pool.prefault(usize::MAX, 1).err().unwrap().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn forked_child_does_not_use_the_pool() {
        let mut pool = MemfdPool::new(1 << 20);
        pool.prefault(10_000, 1).unwrap();
        Arc::get_mut(&mut pool.free).unwrap().set_foreign_owner();
        drop(pool.reserve(10_000).unwrap());
        assert_eq!((pool.stats().hits, pool.stats().free), (0, 1));
    }

    #[test]
    fn memory_left_unpublished_is_bounded_and_given_back() {
        // No series, for which further memfds would be made.
        let pool = MemfdPool::with_timing(1 << 30, Timing { gap_max: Duration::ZERO, ..UNLIMITED });
        let start = Instant::now();
        assert_eq!(pool.prefault(1 << 20, 1).unwrap(), 1);
        let changes = Arc::new(AtomicUsize::new(0));
        let free_bytes = Arc::clone(&changes);
        pool.on_change(move |before, now| {
            free_bytes.fetch_add(now, Ordering::Relaxed);
            free_bytes.fetch_sub(before, Ordering::Relaxed);
        });
        // As a group that fails after its bytes were written.
        let leave = |len: usize| drop(pool.copy_of(&vec![1; len]).unwrap());
        leave(3 << 20);
        leave(65 << 20);
        (0..10).for_each(|_| leave(16 << 20));
        let held: Vec<_> = (0..10).map(|_| pool.copy_of(&vec![1; 16 << 20]).unwrap()).collect();
        drop(held);
        let unused = pool.unused();
        assert_eq!(unused.bytes, (3 + 3 * 16) << 20, "at most 64 MiB");
        assert_eq!(changes.load(Ordering::Relaxed), unused.bytes);
        pool.give_up_oldest();
        assert_eq!(pool.unused().bytes, (3 * 16) << 20, "the one of 3 MiB");
        assert!(pool.unused().since > unused.since);
        assert!(pool.free.give_back(start), "not idle for long enough");
        assert!(!pool.free.give_back(Instant::now() + Duration::from_secs(5)));
        let stats = pool.stats();
        assert_eq!((stats.free, stats.free_bytes), (1, 1 << 20), "the prefaulted one stays until its first use");
        assert_eq!(changes.load(Ordering::Relaxed), 0);
        leave(1 << 20);
        assert!(!pool.free.give_back(Instant::now() + Duration::from_secs(5)));
        assert_eq!(pool.stats().free, 0);
    }

    #[test]
    fn series_of_equal_lengths_prefaults_the_next_memfd() {
        let pool = MemfdPool::with_timing(64 << 20, UNLIMITED);
        let first = publish(&pool, 3 << 20, 1);
        publish(&pool, 5 << 20, 1);
        publish(&pool, 3 << 20, 1);
        assert!(!pool.prefaulter.is_running(), "alternating lengths are not a series");
        let second = publish(&pool, 3 << 20, 2);
        pool.prefaulter.wait_until_done();
        assert_eq!(pool.stats().free, 1);
        let before = pool.stats().hits;
        let third = publish(&pool, 3 << 20, 3);
        assert_eq!(pool.stats().hits, before + 1);
        for (tensor, byte) in [(first, 1), (second, 2), (third, 3)] {
            assert!(tensor.bytes().unwrap().iter().all(|&found| found == byte));
        }
    }

    #[test]
    fn unused_prefaulted_memfd_is_freed_and_a_new_series_can_start() {
        let pool = MemfdPool::with_timing(64 << 20, Timing { unused_max: Duration::ZERO, ..UNLIMITED });
        for byte in [1, 3] {
            publish(&pool, 3 << 20, byte);
            publish(&pool, 3 << 20, byte + 1);
            pool.prefaulter.wait_until_ended();
            assert_eq!(pool.stats().free_bytes, 0);
        }
    }

    #[test]
    fn pause_longer_than_the_gap_ends_a_series() {
        let pool = MemfdPool::with_timing(64 << 20, Timing { gap_max: Duration::ZERO, ..UNLIMITED });
        (0..5).for_each(|byte| drop(publish(&pool, 3 << 20, byte)));
        assert!(!pool.prefaulter.is_running());
    }

    #[test]
    fn next_memfd_waits_for_the_current_one_to_be_filled() {
        let pool = MemfdPool::with_timing(64 << 20, UNLIMITED);
        drop(publish(&pool, 3 << 20, 1));
        let filling = pool.reserve(3 << 20).unwrap();
        assert_eq!(pool.stats().free, 0);
        drop(filling.freeze().unwrap());
        pool.prefaulter.wait_until_done();
        assert_eq!(pool.stats().free, 1);
    }

    #[test]
    fn slow_filling_does_not_delay_the_next_memfd_for_ever() {
        let pool = MemfdPool::with_timing(64 << 20, Timing { filling_max: Duration::ZERO, ..UNLIMITED });
        drop(publish(&pool, 3 << 20, 1));
        let mut slow = pool.reserve(3 << 20).unwrap();
        pool.prefaulter.wait_until_done();
        assert_eq!(pool.stats().free, 1);
        slow.write_at(0, &[7; 100]).unwrap();
        drop(slow);
        assert_eq!(pool.stats().free, 2, "the abandoned one, too");
    }

    #[test]
    fn series_without_pauses_publishes_every_segment() {
        let pool = MemfdPool::new(64 << 20);
        for round in 1..=40 {
            let segment = publish(&pool, 2 << 20, round);
            assert!(segment.bytes().unwrap().iter().all(|&found| found == round));
        }
        let stats = pool.stats();
        assert_eq!(stats.hits + stats.misses, 40);
    }

    #[test]
    fn memfd_beyond_the_limit_is_not_prefaulted() {
        let pool = MemfdPool::with_timing(4 << 20, UNLIMITED);
        (0..4).for_each(|byte| drop(publish(&pool, 5 << 20, byte)));
        assert!(!pool.prefaulter.is_running());
        assert_eq!(pool.stats().free, 0);
    }
}
