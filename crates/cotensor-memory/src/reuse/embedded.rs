//! Memory for the tensors of a store inside one process.

use super::pool::MemfdPool;
use crate::host::Slab;
use cotensor_core::{Device, ErrorKind, Memory, MemoryKind, Result, SegmentMut};
use std::sync::{Mutex, PoisonError};

/// Tensors up to this many bytes lie in slabs.
const SMALL_BYTES_MAX: usize = 256 << 10;
/// Bytes of the first slab; each is twice as long as the one before, up to the last.
const SLAB_BYTES_FIRST: usize = 64 << 10;
const SLAB_BYTES_MAX: usize = 4 << 20;
/// Bytes that wait warm for the next large tensor.
const POOL_BYTES_MAX: usize = 256 << 20;

/// Memory that is mapped again at will, by its readers in this process who want pages of their own: slabs for small tensors,
/// so that ten thousand of them are no ten thousand descriptors, and warm memfds for large ones. A slab stays for the next
/// small tensors when it is empty.
pub struct EmbeddedMemory {
    pool: MemfdPool,
    /// The newest last.
    slabs: Mutex<Vec<Slab>>,
}

impl Default for EmbeddedMemory {
    fn default() -> Self {
        Self { pool: MemfdPool::new(POOL_BYTES_MAX), slabs: Mutex::default() }
    }
}

impl EmbeddedMemory {
    fn small(&self, reserve: impl Fn(&Slab) -> Result<Box<dyn SegmentMut>>, len: usize) -> Result<Box<dyn SegmentMut>> {
        let mut slabs = self.slabs.lock().unwrap_or_else(PoisonError::into_inner);
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

impl Memory for EmbeddedMemory {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Memfd
    }

    fn device(&self) -> Device {
        Device::Cpu
    }

    /// Slabs are ready anyway.
    fn prefault(&self, len: usize, count: usize) -> Result<usize> {
        if len > SMALL_BYTES_MAX { self.pool.prefault(len, count) } else { Ok(count) }
    }

    fn reserve(&self, len: usize) -> Result<Box<dyn SegmentMut>> {
        if len > SMALL_BYTES_MAX { self.pool.reserve(len) } else { self.small(|slab| slab.reserve(len), len) }
    }

    fn copy_of(&self, source: &[u8]) -> Result<Box<dyn SegmentMut>> {
        let len = source.len();
        if len > SMALL_BYTES_MAX { self.pool.copy_of(source) } else { self.small(|slab| slab.copy_of(source), len) }
    }

    /// Always a memfd: in a slab, whoever kept the address could go on writing.
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
    fn many_small_tensors_are_few_descriptors() {
        let memory = EmbeddedMemory::default();
        let before = fd_count(std::process::id()).unwrap();
        let segments: Vec<Arc<dyn Segment>> =
            (0..5000u32).map(|i| memory.copy_of(&i.to_ne_bytes().repeat(250)).unwrap().freeze().unwrap()).collect();
        assert!(
            fd_count(std::process::id()).unwrap() - before < 20,
            "{} descriptors",
            fd_count(std::process::id()).unwrap() - before
        );
        for (i, segment) in segments.iter().enumerate() {
            assert_eq!(segment.bytes().unwrap(), (i as u32).to_ne_bytes().repeat(250));
        }
        let slabs = memory.slabs.lock().unwrap().len();
        drop(segments);
        let _again: Vec<_> = (0..5000).map(|_| memory.reserve(1000).unwrap()).collect();
        assert_eq!(memory.slabs.lock().unwrap().len(), slabs, "ranges are used again");
    }

    #[test]
    fn each_size_has_the_memory_that_suits_it() {
        let memory = EmbeddedMemory::default();
        let kind = |len| memory.reserve(len).unwrap().freeze().unwrap().kind();
        assert_eq!((kind(0), kind(100), kind(SMALL_BYTES_MAX)), (MemoryKind::Slab, MemoryKind::Slab, MemoryKind::Slab));
        assert_eq!(kind(SMALL_BYTES_MAX + 1), MemoryKind::Memfd);
        assert_eq!(memory.reserve_aliased(8).unwrap().freeze().unwrap().kind(), MemoryKind::Memfd);
        assert_eq!(memory.reserve(usize::MAX).err().unwrap().kind(), ErrorKind::Invalid);
    }
}
