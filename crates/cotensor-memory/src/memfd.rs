//! Anonymous files that any process can map and none can write once they are published.

use crate::map::Map;
use cotensor_core::{Device, Error, ErrorKind, Memory, MemoryKind, Result, Segment, SegmentMut, TENSOR_BYTES_MAX};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Every change that a published segment must rule out.
const SEALS: SealFlags = SealFlags::WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::SEAL);

/// Memory in anonymous files of the kernel, one per segment.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemfdMemory;

impl Memory for MemfdMemory {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Memfd
    }

    fn device(&self) -> Device {
        Device::Cpu
    }

    fn reserve(&self, len: usize) -> Result<Box<dyn SegmentMut>> {
        if len as u64 > TENSOR_BYTES_MAX {
            return Err(Error::invalid(format!("{len} bytes are more than a segment may have")));
        }
        let io = |what: &str, error: rustix::io::Errno| {
            Error::io(format!("{what} {len} bytes of shared memory"), &error.into())
        };
        let fd = memfd_create("cotensor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(|error| io("cannot make", error))?;
        ftruncate(&fd, len as u64).map_err(|error| io("cannot size", error))?;
        if len > 0 {
            // Backed now or refused now: a page that is missing later would be a SIGBUS for whoever touches it.
            fallocate(&fd, FallocateFlags::empty(), 0, len as u64).map_err(|error| io("cannot reserve", error))?;
        }
        let map = Map::new(fd.as_fd(), len, true)?;
        Ok(Box::new(Writable { map, fd }))
    }
}

struct Writable {
    map: Map,
    fd: OwnedFd,
}

impl SegmentMut for Writable {
    fn len(&self) -> usize {
        self.map.len()
    }

    fn bytes(&self) -> Option<&[u8]> {
        Some(self.map.bytes())
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        self.map.bytes_mut()
    }

    fn freeze(self: Box<Self>) -> Result<Arc<dyn Segment>> {
        let Writable { map, fd } = *self;
        let map = map.into_read_only(fd.as_fd())?;
        // Succeeds only when no writable mapping is left anywhere: the proof that nobody can write it any more.
        fcntl_add_seals(&fd, SEALS).map_err(|error| Error::io("cannot seal shared memory", &error.into()))?;
        Ok(Arc::new(Sealed { map, fd }))
    }
}

struct Sealed {
    map: Map,
    fd: OwnedFd,
}

impl Segment for Sealed {
    fn len(&self) -> usize {
        self.map.len()
    }

    fn kind(&self) -> MemoryKind {
        MemoryKind::Memfd
    }

    fn device(&self) -> Device {
        Device::Cpu
    }

    fn bytes(&self) -> Option<&[u8]> {
        Some(self.map.bytes())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }
}

/// Maps a segment that another process published, after checking that nobody can change it.
///
/// # Errors
/// `Refused` when it is no memfd or lacks a seal, `Io` when it cannot be mapped.
pub fn open_shared(fd: OwnedFd) -> Result<Arc<dyn Segment>> {
    let refused =
        |what: &str| Error::new(ErrorKind::Refused, format!("this descriptor is not a published segment: {what}"));
    let seals = fcntl_get_seals(&fd).map_err(|_| refused("it cannot be sealed"))?;
    if !seals.contains(SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW) {
        return Err(refused("it is not sealed against writing and resizing"));
    }
    let size = fstat(&fd).map_err(|error| Error::io("cannot look at a segment", &error.into()))?.st_size;
    let len = usize::try_from(size).map_err(|_| refused("its size is impossible"))?;
    let map = Map::new(fd.as_fd(), len, false)?;
    Ok(Arc::new(Sealed { map, fd }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, OFlags, open};
    use std::os::fd::AsRawFd;

    fn published() -> Arc<dyn Segment> {
        let mut segment = MemfdMemory.reserve(8192).unwrap();
        segment.write_at(0, &[7; 8192]).unwrap();
        segment.freeze().unwrap()
    }

    #[test]
    fn conforms() {
        cotensor_core::testing::conformance(&MemfdMemory);
    }

    #[test]
    fn nobody_can_write_or_resize_what_is_published() {
        let segment = published();
        let fd = segment.fd().unwrap();
        assert!(Map::new(fd, 8192, true).is_err(), "no writable mapping");
        assert!(ftruncate(fd, 0).is_err() && ftruncate(fd, 16384).is_err(), "no resizing");
        assert!(rustix::io::write(fd, b"x").is_err(), "no writing");
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let reopened = open(path, OFlags::RDWR, Mode::empty());
        if let Ok(reopened) = reopened {
            assert!(rustix::io::write(&reopened, b"x").is_err(), "reopening does not help");
            assert!(Map::new(reopened.as_fd(), 8192, true).is_err());
        }
        assert!(segment.bytes().unwrap().iter().all(|&byte| byte == 7));
    }

    #[test]
    fn a_second_holder_maps_the_same_pages() {
        let segment = published();
        let copy = open_shared(segment.fd().unwrap().try_clone_to_owned().unwrap()).unwrap();
        drop(segment);
        assert_eq!(copy.bytes().unwrap(), [7; 8192]);
    }

    #[test]
    fn unsealed_and_foreign_descriptors_are_refused() {
        let fd = memfd_create("x", MemfdFlags::ALLOW_SEALING).unwrap();
        assert_eq!(open_shared(fd).err().unwrap().kind(), ErrorKind::Refused);
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert_eq!(open_shared(file.into()).err().unwrap().kind(), ErrorKind::Refused);
    }

    #[test]
    fn dropping_returns_descriptor_and_mapping() {
        // Other tests of this process run beside this one, so a leak shows as growth over many rounds.
        for _ in 0..2000 {
            let segment = published();
            assert!(segment.bytes().is_some());
        }
        assert!(crate::usage::fd_count().unwrap() < 500);
        assert!(crate::usage::mapping_count().unwrap() < 1000);
    }
}
