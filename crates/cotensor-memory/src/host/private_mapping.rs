//! Private mappings: shared bytes that one reader may write in place.

use super::memfd::{MemfdSlice, SealedMemfd};
use super::slab::SlabSegment;
use crate::mapping::{Access, Mapping, MappingCache, dirty_bytes};
use cotensor_core::{Error, Result, Segment, range_within};
use rustix::param::page_size;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

/// The bytes of a published segment in a private mapping (`MAP_PRIVATE`). A write copies the page for this reader; no
/// other reader sees it.
///
/// Unwritten pages show the segment. Those of a slab change when the slab reuses the range, so a `PrivateMapping` must
/// not outlive the lease.
pub struct PrivateMapping {
    /// `None` only during the drop.
    map: Option<Mapping>,
    /// The bytes inside the mapping, which starts at a page.
    range: Range<usize>,
    /// The cache that takes the mapping when it was not written.
    cache: Weak<MappingCache>,
    /// The bytes of the file that the mapping shows.
    file_range: Range<usize>,
}

impl PrivateMapping {
    /// Maps the bytes `range` of a segment.
    ///
    /// # Errors
    /// `Invalid` when the range is not inside, `Unsupported` for memory without a descriptor, `Io` when it cannot be
    /// mapped.
    pub fn of(segment: &dyn Segment, range: Range<usize>) -> Result<Self> {
        let range = range_within(range.start, range.len(), segment.len())?;
        let fd = segment.fd().ok_or_else(|| Error::unsupported("this memory cannot be mapped again"))?;
        let start = segment.fd_offset() + range.start;
        let before = start % page_size();
        let inside = if range.is_empty() { 0..0 } else { before..before + range.len() };
        let file_range = start - before..start - before + inside.end;
        let cache = mapping_cache(segment);
        let map = match cache.and_then(|cache| cache.take(&file_range)) {
            Some(map) => map,
            None => Mapping::with_offset(fd, file_range.start as u64, inside.end, Access::CopyOnWrite)?,
        };
        let cache = cache.map(Arc::downgrade).unwrap_or_default();
        Ok(Self { map: Some(map), range: inside, cache, file_range })
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.map.as_ref().and_then(|map| map.bytes().get(self.range.clone())).unwrap_or_default()
    }

    /// The bytes for writing. Other readers do not see the writes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let bytes = self.map.as_mut().and_then(Mapping::bytes_mut);
        bytes.and_then(|bytes| bytes.get_mut(self.range.clone())).unwrap_or_default()
    }

    /// The address of the bytes, for code that reads and writes there by itself. While it may, neither
    /// [`bytes`](Self::bytes) nor [`bytes_mut`](Self::bytes_mut) may be used.
    pub fn address(&self) -> NonNull<u8> {
        let start = self.map.as_ref().map_or(NonNull::dangling(), Mapping::start);
        // Inside the mapping, or its start for no bytes.
        start.map_addr(|address| address.saturating_add(self.range.start))
    }

    /// The size, in bytes, of the dirty pages: those that this reader has written, and that no longer belong to the
    /// segment.
    ///
    /// # Errors
    /// `Io` when `/proc/self/pagemap` cannot be read.
    pub fn dirty_bytes(&self) -> Result<u64> {
        self.map.as_ref().map_or(Ok(0), |map| dirty_bytes(map.start().addr().get(), map.len()))
    }

    /// As [`dirty_bytes`](Self::dirty_bytes), of the pages that hold the bytes `range` of this mapping.
    ///
    /// # Errors
    /// `Invalid` when the range is not inside; `Io` as above.
    pub fn dirty_bytes_in(&self, range: Range<usize>) -> Result<u64> {
        let range = range_within(range.start, range.len(), self.range.len())?;
        let Some(map) = self.map.as_ref().filter(|_| !range.is_empty()) else { return Ok(0) };
        let first = map.start().addr().get() + self.range.start + range.start;
        let start = first - first % page_size();
        dirty_bytes(start, first - start + range.len())
    }

    /// Ends the mapping and returns its [`dirty_bytes`](Self::dirty_bytes).
    ///
    /// # Errors
    /// As [`dirty_bytes`](Self::dirty_bytes).
    pub fn close(mut self) -> Result<u64> {
        self.cache_or_unmap()
    }

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

impl Drop for PrivateMapping {
    fn drop(&mut self) {
        // If the kernel does not report dirty pages, the mapping is unmapped.
        drop(self.cache_or_unmap());
    }
}

/// The mapping cache of a segment, if it has one.
fn mapping_cache(segment: &dyn Segment) -> Option<&Arc<MappingCache>> {
    let segment = segment.as_any()?;
    let of_memfd = || segment.downcast_ref::<SealedMemfd>().map(SealedMemfd::mapping_cache);
    let of_slice = || segment.downcast_ref::<MemfdSlice>().map(MemfdSlice::mapping_cache);
    of_memfd().or_else(of_slice).or_else(|| segment.downcast_ref::<SlabSegment>().map(SlabSegment::mapping_cache))
}

#[cfg(test)]
mod tests {
    use super::PrivateMapping;
    use crate::{MemfdMut, Slab, process::range_at};
    use cotensor_core::{Memory, Segment, SegmentMut};
    use rustix::param::page_size;
    use std::sync::Arc;

    #[test]
    fn write_copies_one_page_for_the_writer_alone() {
        let page = page_size();
        let mut memfd = MemfdMut::create(64 * page).unwrap();
        memfd.bytes_mut().unwrap().fill(7);
        let sealed = memfd.seal().unwrap();
        let mut copy = PrivateMapping::of(&sealed, page + 64..60 * page).unwrap();
        assert_eq!(copy.bytes().len(), 59 * page - 64);
        assert_eq!(copy.address().as_ptr().cast_const(), copy.bytes().as_ptr());
        assert!(copy.bytes().iter().all(|&byte| byte == 7));
        assert_eq!(copy.dirty_bytes().unwrap(), 0, "reading dirties no page");
        copy.bytes_mut()[10 * page] = 8;
        assert_eq!(copy.bytes()[10 * page], 8);
        assert!(sealed.bytes().unwrap().iter().all(|&byte| byte == 7), "no other reader sees it");
        let mapping = range_at(copy.bytes().as_ptr().wrapping_sub(64)).unwrap();
        assert_eq!((mapping.range.permissions.as_str(), mapping.anonymous_bytes), ("rw-p", page as u64));
        assert_eq!(copy.dirty_bytes().unwrap(), page as u64);
        drop(sealed);
        assert_eq!(copy.bytes()[59 * page - 65], 7, "it outlives the segment's own mapping");
    }

    #[test]
    fn dirty_pages_are_counted_by_range() {
        let page = page_size();
        let sealed = MemfdMut::create(64 * page).unwrap().seal().unwrap();
        let mut copy = PrivateMapping::of(&sealed, 64..60 * page).unwrap();
        copy.bytes_mut()[10 * page] = 8;
        let dirty = |range| copy.dirty_bytes_in(range).unwrap();
        // The mapping starts 64 bytes inside a page.
        assert_eq!(dirty(0..10 * page - 64), 0);
        assert_eq!(dirty(10 * page - 64..10 * page - 63), page as u64, "another byte of the same page");
        assert_eq!(dirty(11 * page - 64..59 * page), 0);
        assert_eq!(dirty(0..60 * page - 64), page as u64);
        assert_eq!(dirty(10 * page..10 * page), 0);
        assert_eq!(copy.dirty_bytes_in(0..60 * page).unwrap_err().kind(), cotensor_core::ErrorKind::Invalid);
    }

    #[test]
    fn write_to_a_huge_page_dirties_a_small_page() {
        let len = 8 << 20;
        let sealed = MemfdMut::create(len).unwrap().seal().unwrap();
        let mut copy = PrivateMapping::of(&sealed, 0..len).unwrap();
        assert_eq!(copy.bytes().iter().filter(|&&byte| byte != 0).count(), 0, "every page is read");
        assert_eq!(copy.dirty_bytes().unwrap(), 0);
        for page in [0, 7, 600, 2047] {
            copy.bytes_mut()[page * page_size()] = 1;
        }
        assert_eq!(copy.dirty_bytes().unwrap(), 4 * page_size() as u64);
    }

    #[test]
    fn slab_segment_is_mapped_at_its_offset() {
        let slab = Slab::create(1 << 16).unwrap();
        let _before = slab.copy_of(&[1; 5000]).unwrap();
        let part = slab.copy_of(&[2; 300]).unwrap().freeze().unwrap();
        let mut copy = PrivateMapping::of(&*part, 64..300).unwrap();
        assert_eq!(copy.bytes(), [2; 236]);
        copy.bytes_mut().fill(3);
        assert_eq!(part.bytes().unwrap(), [2; 300]);
    }

    #[test]
    fn unwritten_mapping_is_cached_and_written_mapping_is_not() {
        let slab = Arc::new(Slab::create(1 << 16).unwrap());
        let mut part = slab.reserve(9000).unwrap();
        part.bytes_mut().unwrap().fill(1);
        let first = part.freeze().unwrap();
        let copy = PrivateMapping::of(&*first, 0..9000).unwrap();
        let address = copy.address();
        assert_eq!(copy.bytes(), [1; 9000]);
        assert_eq!(copy.close().unwrap(), 0);
        drop(first);
        // The slab reuses the range, and the mapping shows the new bytes.
        let second = slab.copy_of(&[2; 9000]).unwrap().freeze().unwrap();
        let mut copy = PrivateMapping::of(&*second, 0..9000).unwrap();
        assert_eq!((copy.address(), copy.bytes()), (address, &[2; 9000][..]), "the cached mapping");
        copy.bytes_mut()[5000] = 3;
        let another = PrivateMapping::of(&*second, 0..9000).unwrap();
        assert_eq!(another.bytes(), [2; 9000], "two readers have two mappings");
        assert_eq!(copy.close().unwrap(), page_size() as u64);
        drop(another);
        for _ in 0..40 {
            let copies: Vec<_> = (0..20).map(|_| PrivateMapping::of(&*second, 0..9000).unwrap()).collect();
            assert!(copies.iter().all(|copy| copy.bytes() == [2; 9000]));
        }
    }

    #[test]
    fn any_range_inside_the_segment_can_be_mapped() {
        let mut memfd = MemfdMut::create(10_000).unwrap();
        memfd.bytes_mut().unwrap().iter_mut().enumerate().for_each(|(i, byte)| *byte = (i % 251) as u8);
        let sealed = memfd.seal().unwrap();
        for range in [0..0, 10_000..10_000, 0..1, 4095..4097, 9999..10_000, 0..10_000] {
            let mut copy = PrivateMapping::of(&sealed, range.clone()).unwrap();
            assert_eq!(copy.bytes(), &sealed.bytes().unwrap()[range.clone()], "{range:?}");
            assert_eq!(copy.bytes_mut().len(), range.len());
        }
        assert!(
            PrivateMapping::of(&sealed, 0..10_001).is_err() && PrivateMapping::of(&sealed, 10_001..10_001).is_err()
        );
    }
}
