//! Private mappings: shared bytes that one reader may write in place.

#[cfg(test)]
mod tests;

use crate::host::memfd::{MemfdSlice, SealedMemfd};
use crate::host::slab::SlabSegment;
use crate::mapping::{Access, Mapping, MappingCache, WindowPart, Windows, dirty_bytes};
use cotensor_core::{Error, Result, Segment, range_within};
use rustix::param::page_size;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

/// The bytes of a published segment in a private mapping (`MAP_PRIVATE`). A write copies the page for this reader; no
/// other reader sees it.
///
/// Unwritten pages show the segment. Those of a slab change when the slab reuses the range, so a `PrivateMapping` must
/// not outlive the lease.
pub struct PrivateMapping(Memory);

enum Memory {
    Own(OwnMapping),
    /// A part of a slab, in a mapping of the whole slab.
    Part(WindowPart),
}

impl PrivateMapping {
    /// Maps the bytes `range` of a segment.
    ///
    /// # Errors
    /// `Invalid` when the range is not inside, `Unsupported` for memory without a descriptor, `OverBudget` when a limit
    /// of this process is reached, `Io` when it cannot be mapped.
    pub fn of(segment: &dyn Segment, range: Range<usize>) -> Result<Self> {
        let range = range_within(range.start, range.len(), segment.len())?;
        let fd = segment.fd().ok_or_else(|| Error::unsupported("this memory cannot be mapped again"))?;
        let start = segment.fd_offset() + range.start;
        if let Some((windows, len)) = windows(segment)
            && let Some(part) = windows.part(fd, len, &(start..start + range.len()))?
        {
            return Ok(Self(Memory::Part(part)));
        }
        Ok(Self(Memory::Own(OwnMapping::new(fd, start, range.len(), memfd(segment).map(SealedMemfd::mapping_cache))?)))
    }

    fn len(&self) -> usize {
        match &self.0 {
            Memory::Own(own) => own.range.len(),
            Memory::Part(part) => part.len(),
        }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the range is mapped and readable while `self` lives, and no other reader has it. The bytes do not
        // change: they are leased, and their writers borrow `self` exclusively.
        unsafe { std::slice::from_raw_parts(self.address().as_ptr(), self.len()) }
    }

    /// The bytes for writing. Other readers do not see the writes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; the mapping is writable, and the exclusive borrow excludes other references.
        unsafe { std::slice::from_raw_parts_mut(self.address().as_ptr(), self.len()) }
    }

    /// The address of the bytes, for code that reads and writes there by itself. While it may, neither
    /// [`bytes`](Self::bytes) nor [`bytes_mut`](Self::bytes_mut) may be used.
    pub fn address(&self) -> NonNull<u8> {
        match &self.0 {
            Memory::Own(own) => own.address(),
            Memory::Part(part) => part.start(),
        }
    }

    /// The size, in bytes, of the dirty pages: those that this reader has written, and that no longer belong to the
    /// segment. A page of a slab holds several tensors; it counts for the readers of all of them.
    ///
    /// # Errors
    /// `Io` when `/proc/self/pagemap` cannot be read.
    pub fn dirty_bytes(&self) -> Result<u64> {
        self.dirty_bytes_in(0..self.len())
    }

    /// As [`dirty_bytes`](Self::dirty_bytes), of the pages that hold the bytes `range` of this mapping.
    ///
    /// # Errors
    /// `Invalid` when the range is not inside; `Io` as above.
    pub fn dirty_bytes_in(&self, range: Range<usize>) -> Result<u64> {
        let range = range_within(range.start, range.len(), self.len())?;
        if range.is_empty() {
            return Ok(0);
        }
        let first = self.address().addr().get() + range.start;
        let start = first - first % page_size();
        dirty_bytes(start, first - start + range.len())
    }

    /// Ends the mapping and returns its [`dirty_bytes`](Self::dirty_bytes).
    ///
    /// # Errors
    /// As [`dirty_bytes`](Self::dirty_bytes).
    pub fn close(self) -> Result<u64> {
        match self.0 {
            Memory::Own(mut own) => own.cache_or_unmap(),
            Memory::Part(part) => part.close(),
        }
    }
}

/// A mapping for one reader.
struct OwnMapping {
    /// `None` only during the drop.
    map: Option<Mapping>,
    /// The bytes inside the mapping, which starts at a page.
    range: Range<usize>,
    /// The cache that takes the mapping when it was not written.
    cache: Weak<MappingCache>,
    /// The bytes of the file that the mapping shows.
    file_range: Range<usize>,
}

impl OwnMapping {
    /// Maps `len` bytes of the file from byte `start` on.
    fn new(fd: BorrowedFd<'_>, start: usize, len: usize, cache: Option<&Arc<MappingCache>>) -> Result<Self> {
        let before = start % page_size();
        let inside = if len == 0 { 0..0 } else { before..before + len };
        let file_range = start - before..start - before + inside.end;
        let map = match cache.and_then(|cache| cache.take(&file_range)) {
            Some(map) => map,
            None => Mapping::with_offset(fd, file_range.start as u64, inside.end, Access::CopyOnWrite)?,
        };
        Ok(Self { map: Some(map), range: inside, cache: cache.map(Arc::downgrade).unwrap_or_default(), file_range })
    }

    fn address(&self) -> NonNull<u8> {
        let start = self.map.as_ref().map_or(NonNull::dangling(), Mapping::start);
        // Inside the mapping, or its start for no bytes.
        start.map_addr(|address| address.saturating_add(self.range.start))
    }

    /// Returns the size of the dirty pages.
    fn cache_or_unmap(&mut self) -> Result<u64> {
        let Some(map) = self.map.take() else { return Ok(0) };
        let dirty = dirty_bytes(map.start().addr().get(), map.len())?;
        // A mapping without dirty pages shows the segment and nothing else.
        if let Some(cache) = self.cache.upgrade().filter(|_| dirty == 0 && map.len() > 0) {
            cache.put(self.file_range.clone(), map);
        }
        Ok(dirty)
    }
}

impl Drop for OwnMapping {
    fn drop(&mut self) {
        // If the kernel does not report dirty pages, the mapping is unmapped.
        let _ = self.cache_or_unmap();
    }
}

/// The memfd that a segment is, or is a part of.
fn memfd(segment: &dyn Segment) -> Option<&SealedMemfd> {
    let segment = segment.as_any()?;
    segment.downcast_ref().or_else(|| segment.downcast_ref().map(MemfdSlice::whole))
}

/// The windows of a slab that a segment is, or is a part of, and the length of the slab in bytes.
fn windows(segment: &dyn Segment) -> Option<(&Windows, usize)> {
    match segment.as_any()?.downcast_ref::<SlabSegment>() {
        Some(part) => Some(part.windows()),
        None => memfd(segment)?.windows(),
    }
}
