//! Unwritten private mappings of one segment, cached for the next reader of the same bytes.
//!
//! Mapping a small tensor, faulting in its pages and unmapping it takes longer than reading it: unmapping interrupts
//! the other cores. Programs that compute on small tensors read the same bytes, or the same range of a slab,
//! repeatedly.

use super::mmap::Mapping;
use std::ops::Range;
use std::sync::Mutex;

/// The most mappings of one segment. The least recently used one is dropped first.
const MAPPINGS_MAX: usize = 16;

/// The cached mappings of one segment, by the bytes of the file that they show. They use address space but no memory of
/// their own, and end with the segment.
#[derive(Default)]
pub(crate) struct MappingCache(Mutex<Vec<(Range<usize>, Mapping)>>);

// Both methods only try the lock: in a forked child, a thread that does not exist there may hold it for ever.
impl MappingCache {
    /// Takes a mapping of the bytes `range` of the file.
    pub(crate) fn take(&self, range: &Range<usize>) -> Option<Mapping> {
        let mut cached = self.0.try_lock().ok()?;
        let index = cached.iter().rposition(|(known, _)| known == range)?;
        Some(cached.remove(index).1)
    }

    /// Caches a mapping of the bytes `range` of the file. No page of it has been written.
    pub(crate) fn put(&self, range: Range<usize>, map: Mapping) {
        let Ok(mut cached) = self.0.try_lock() else { return };
        let oldest = (cached.len() >= MAPPINGS_MAX).then(|| cached.remove(0));
        cached.push((range, map));
        // Unmapping takes long: not while the lock is held.
        drop(cached);
        drop(oldest);
    }
}
