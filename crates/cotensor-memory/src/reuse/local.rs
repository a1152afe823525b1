//! The memory of a local store.

use super::pool::MemfdPool;
use crate::host::Slab;
use cotensor_core::sync::lock;
use cotensor_core::{Device, ErrorKind, Memory, MemoryKind, Result, SegmentMut};
use std::sync::Mutex;

/// Tensors of at most this many bytes are placed in slabs.
const SMALL_BYTES_MAX: usize = 256 << 10;
/// The length of the first slab; each further one is twice as long as the one before, up to the maximum.
const SLAB_BYTES_FIRST: usize = 64 << 10;
const SLAB_BYTES_MAX: usize = 4 << 20;
/// The most free bytes of the pool, with those that the program prefaults.
const POOL_BYTES_MAX: usize = 256 << 20;

/// Slabs for small tensors, so that thousands of them take few descriptors, and a [`MemfdPool`] for large ones. All of
/// it can be mapped privately by readers in this process. Slabs stay when they are empty.
pub struct LocalMemory {
    pool: MemfdPool,
    /// In the order of their creation.
    slabs: Mutex<Vec<Slab>>,
}

impl Default for LocalMemory {
    fn default() -> Self {
        Self { pool: MemfdPool::new(POOL_BYTES_MAX), slabs: Mutex::default() }
    }
}

impl LocalMemory {
    /// Calls `reserve` with the first slab that has `len` bytes free, starting with the newest, or with a new slab.
    fn reserve_in_slab(
        &self,
        len: usize,
        reserve: impl Fn(&Slab) -> Result<Box<dyn SegmentMut>>,
    ) -> Result<Box<dyn SegmentMut>> {
        let mut slabs = lock(&self.slabs);
        for slab in slabs.iter().rev() {
            match reserve(slab) {
                Err(error) if error.kind() == ErrorKind::OverBudget => {}
                outcome => return outcome,
            }
        }
        let next = slabs.last().map_or(SLAB_BYTES_FIRST, |last| (2 * last.len()).min(SLAB_BYTES_MAX));
        let slab = Slab::create(next.max(2 * len))?;
        let segment = reserve(&slab)?;
        slabs.push(slab);
        Ok(segment)
    }
}

impl Memory for LocalMemory {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Memfd
    }

    fn device(&self) -> Device {
        Device::Cpu
    }

    /// Slabs need no prefaulting.
    fn prefault(&self, len: usize, count: usize) -> Result<usize> {
        if len > SMALL_BYTES_MAX { self.pool.prefault(len, count) } else { Ok(count) }
    }

    fn reserve(&self, len: usize) -> Result<Box<dyn SegmentMut>> {
        if len > SMALL_BYTES_MAX { self.pool.reserve(len) } else { self.reserve_in_slab(len, |slab| slab.reserve(len)) }
    }

    fn copy_of(&self, source: &[u8]) -> Result<Box<dyn SegmentMut>> {
        let len = source.len();
        if len > SMALL_BYTES_MAX {
            self.pool.copy_of(source)
        } else {
            self.reserve_in_slab(len, |slab| slab.copy_of(source))
        }
    }

    /// Always a memfd: code that keeps an address in a slab could write it after publishing.
    fn reserve_aliased(&self, len: usize) -> Result<Box<dyn SegmentMut>> {
        self.pool.reserve_aliased(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::fd_count;
    use cotensor_core::Segment;
    use std::sync::Arc;

    #[test]
    fn thousands_of_small_tensors_take_few_descriptors() {
        let memory = LocalMemory::default();
        let open_fds = || fd_count(std::process::id()).unwrap();
        let before = open_fds();
        let segments: Vec<Arc<dyn Segment>> =
            (0..5000u32).map(|i| memory.copy_of(&i.to_ne_bytes().repeat(250)).unwrap().freeze().unwrap()).collect();
        let added = open_fds() - before;
        assert!(added < 20, "{added} descriptors");
        for (i, segment) in segments.iter().enumerate() {
            assert_eq!(segment.bytes().unwrap(), (i as u32).to_ne_bytes().repeat(250));
        }
        let slabs = memory.slabs.lock().unwrap().len();
        drop(segments);
        let _again: Vec<_> = (0..5000).map(|_| memory.reserve(1000).unwrap()).collect();
        assert_eq!(memory.slabs.lock().unwrap().len(), slabs, "ranges are reused");
    }

    #[test]
    fn small_tensors_use_slabs_and_large_ones_memfds() {
        let memory = LocalMemory::default();
        let kind = |len| memory.reserve(len).unwrap().freeze().unwrap().kind();
        assert_eq!((kind(0), kind(100), kind(SMALL_BYTES_MAX)), (MemoryKind::Slab, MemoryKind::Slab, MemoryKind::Slab));
        assert_eq!(kind(SMALL_BYTES_MAX + 1), MemoryKind::Memfd);
        assert_eq!(memory.reserve_aliased(8).unwrap().freeze().unwrap().kind(), MemoryKind::Memfd);
        assert_eq!(memory.reserve(usize::MAX).err().unwrap().kind(), ErrorKind::Invalid);
    }
}
