//! Private copies that nobody wrote, kept for the next reader of the same bytes.
//!
//! To map a tensor, meet its pages one after the other and unmap it again, which interrupts the other cores, takes longer
//! than reading a small tensor; and who computes on small tensors meets the same bytes, or the same range of a slab, again
//! and again.

use super::mmap::Mapping;
use std::ops::Range;
use std::sync::Mutex;

/// As many of one segment; the one that was used longest ago goes first.
const COUNT_MAX: usize = 16;

/// The copies of one segment that wait. They take address space and no memory, and go with the segment.
#[derive(Default)]
pub(crate) struct MappingCache(Mutex<Vec<(Range<usize>, Mapping)>>);

impl MappingCache {
    /// The mapping of the bytes `range` of the file, which no reader has written.
    pub(crate) fn take(&self, range: &Range<usize>) -> Option<Mapping> {
        // Without waiting: in a forked child a thread that is not there may have locked it for ever.
        let mut waiting = self.0.try_lock().ok()?;
        let at = waiting.iter().rposition(|(known, _)| known == range)?;
        Some(waiting.remove(at).1)
    }

    /// Keeps a mapping that its reader has not written.
    pub(crate) fn put(&self, range: Range<usize>, map: Mapping) {
        let Ok(mut waiting) = self.0.try_lock() else { return };
        let oldest = (waiting.len() >= COUNT_MAX).then(|| waiting.remove(0));
        waiting.push((range, map));
        drop(waiting);
        drop(oldest);
    }
}
