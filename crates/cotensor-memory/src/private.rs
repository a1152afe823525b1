//! Shared bytes that their reader may write in place.

use crate::map::{Access, Map};
use cotensor_core::Result;
use rustix::param::page_size;
use std::ops::Range;
use std::os::fd::BorrowedFd;

/// Bytes of a published segment, writable for one reader: each page is everybody's until he writes it.
///
/// Pages that he did not write still show the segment; those of a slab's range change when the range is used again, so
/// it must not outlive the lease.
pub struct PrivateCopy {
    map: Map,
    /// Where the bytes lie in the mapping, which starts with a page.
    range: Range<usize>,
}

impl PrivateCopy {
    /// The bytes `range` of the file, which has to have them.
    pub(crate) fn new(fd: BorrowedFd<'_>, range: Range<usize>) -> Result<Self> {
        let before = range.start % page_size();
        let within = before..before + range.len();
        let len = if range.is_empty() { 0 } else { within.end };
        let map = Map::at(fd, (range.start - before) as u64, len, Access::CopyOnWrite)?;
        Ok(Self { map, range: if range.is_empty() { 0..0 } else { within } })
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.map.bytes().get(self.range.clone()).unwrap_or_default()
    }

    /// The bytes for writing; nobody else sees it.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.map.bytes_mut().and_then(|bytes| bytes.get_mut(self.range.clone())).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use crate::{MemfdMut, usage::mapping_at};
    use cotensor_core::{Segment, SegmentMut};
    use rustix::param::page_size;

    #[test]
    fn writes_stay_with_the_writer_and_copy_one_page() {
        let page = page_size();
        let mut memfd = MemfdMut::create(64 * page).unwrap();
        memfd.bytes_mut().unwrap().fill(7);
        let sealed = memfd.seal().unwrap();
        let mut copy = sealed.copy_on_write(page + 64..60 * page).unwrap();
        assert_eq!(copy.bytes().len(), 59 * page - 64);
        assert!(copy.bytes().iter().all(|&byte| byte == 7));
        copy.bytes_mut()[10 * page] = 8;
        assert_eq!(copy.bytes()[10 * page], 8);
        assert!(sealed.bytes().unwrap().iter().all(|&byte| byte == 7), "nobody else sees it");
        let mapping = mapping_at(copy.bytes().as_ptr().wrapping_sub(64)).unwrap();
        assert_eq!((mapping.protection.as_str(), mapping.anonymous_bytes), ("rw-p", page as u64));
        drop(sealed);
        assert_eq!(copy.bytes()[59 * page - 65], 7, "it outlives the segment's own mapping");
    }

    #[test]
    fn any_range_inside_will_do() {
        let mut memfd = MemfdMut::create(10_000).unwrap();
        memfd.bytes_mut().unwrap().iter_mut().enumerate().for_each(|(i, byte)| *byte = (i % 251) as u8);
        let sealed = memfd.seal().unwrap();
        for range in [0..0, 10_000..10_000, 0..1, 4095..4097, 9999..10_000, 0..10_000] {
            let mut copy = sealed.copy_on_write(range.clone()).unwrap();
            assert_eq!(copy.bytes(), &sealed.bytes().unwrap()[range.clone()], "{range:?}");
            assert_eq!(copy.bytes_mut().len(), range.len());
        }
        assert!(sealed.copy_on_write(0..10_001).is_err() && sealed.copy_on_write(10_001..10_001).is_err());
    }
}
