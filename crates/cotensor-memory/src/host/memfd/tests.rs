use super::seal::seal_with_retry;
use super::{ForeignMemfd, Guarantee, MemfdMemory, MemfdMut, SealedMemfd, check_no_holes, shared_bytes};
use crate::mapping::{Access, Mapping};
use crate::process::{create_memfd, fd_count, mapping_count, range_at};
use crate::{MemfdPool, PrivateMapping};
use cotensor_core::{ErrorKind, Memory, MemoryKind, Segment, SegmentMut, TENSOR_BYTES_MAX};
use rustix::fs::{Mode, OFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, open};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

fn published() -> Arc<dyn Segment> {
    let mut segment = MemfdMemory.reserve(8192).unwrap();
    segment.write_at(0, &[7; 8192]).unwrap();
    segment.freeze().unwrap()
}

fn received(segment: &dyn Segment) -> OwnedFd {
    segment.fd().unwrap().try_clone_to_owned().unwrap()
}

#[test]
fn memfd_memory_conforms() {
    cotensor_core::testing::conformance(&MemfdMemory);
    cotensor_core::testing::import_conformance(&MemfdMemory);
}

#[test]
fn published_memfd_cannot_be_written_or_resized() {
    let segment = published();
    let fd = segment.fd().unwrap();
    assert!(Mapping::new(fd, 8192, Access::Write).is_err(), "no writable mapping");
    assert!(ftruncate(fd, 0).is_err() && ftruncate(fd, 16384).is_err(), "no resizing");
    assert!(rustix::io::write(fd, b"x").is_err(), "no writing");
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    if let Ok(reopened) = open(path, OFlags::RDWR, Mode::empty()) {
        assert!(rustix::io::write(&reopened, b"x").is_err(), "no writing after reopening");
        assert!(Mapping::new(reopened.as_fd(), 8192, Access::Write).is_err());
    }
    assert!(segment.bytes().unwrap().iter().all(|&byte| byte == 7));
}

#[test]
fn second_holder_maps_the_same_pages() {
    let segment = published();
    let copy = SealedMemfd::open(received(&*segment), 8192, Guarantee::Immutable).unwrap();
    let inode = fstat(segment.fd().unwrap()).unwrap().st_ino;
    for bytes in [segment.bytes().unwrap(), copy.bytes().unwrap()] {
        let range = range_at(bytes.as_ptr()).unwrap().range;
        assert_eq!(range.inode, inode, "the file itself, not a copy");
        assert_eq!(range.permissions, "r--p", "before Linux 6.7 a write-sealed file has no shared mapping");
    }
    drop(segment);
    assert_eq!(copy.bytes().unwrap(), [7; 8192]);
}

#[test]
fn open_once_maps_a_memfd_once_per_process() {
    let (pid, segment) = (std::process::id(), published());
    let before = fd_count(pid).unwrap();
    let open = || SealedMemfd::open_once(received(&*segment), 8192, Guarantee::Immutable).unwrap();
    let copies: Vec<_> = (0..100).map(|_| open()).collect();
    assert_eq!(fd_count(pid).unwrap(), before, "one descriptor");
    let address = segment.bytes().unwrap().as_ptr();
    assert!(copies.iter().all(|copy| copy.bytes().unwrap().as_ptr() == address), "one mapping");
    let fd = received(&*segment);
    drop((segment, copies));
    // After the last segment of the memfd is dropped, it is checked and opened again.
    let again = || SealedMemfd::open_once(fd.try_clone().unwrap(), 8192, Guarantee::Immutable).unwrap();
    let (one, other) = (again(), again());
    assert!(Arc::ptr_eq(&one, &other));
    assert_eq!(one.bytes().unwrap(), [7; 8192]);
    assert!(SealedMemfd::open_once(fd, 8191, Guarantee::Immutable).is_err(), "another length is refused");
}

fn memories_with_aliases() -> [Box<dyn Memory>; 2] {
    [Box::new(MemfdMemory), Box::new(MemfdPool::new(1 << 20))]
}

/// What a program that keeps the address does after publishing.
#[test]
fn writes_at_an_aliased_address_stay_private_after_publishing() {
    for memory in memories_with_aliases() {
        let mut segment = memory.reserve_aliased(8192).unwrap();
        let bytes = segment.bytes_mut().unwrap();
        bytes.fill(7);
        let address = bytes.as_mut_ptr();
        let segment = segment.freeze().unwrap();
        let received = SealedMemfd::open(received(&*segment), 8192, Guarantee::Immutable).unwrap();
        // SAFETY: the segment keeps the address mapped and writable for its 8192 bytes, and no other reference to it
        // exists.
        let aliased = unsafe { std::slice::from_raw_parts_mut(address, 8192) };
        assert_eq!(aliased, [7; 8192]);
        aliased.fill(8);
        assert!(segment.bytes().unwrap() == [7; 8192] && received.bytes().unwrap() == [7; 8192]);
        assert_eq!(segment.kind(), MemoryKind::Memfd);
    }
}

/// What a program that keeps the address sees after the tensor is abandoned or released.
#[test]
fn aliased_address_stays_mapped_while_its_handle_exists() {
    for memory in memories_with_aliases() {
        for publish in [false, true] {
            let mut segment = memory.reserve_aliased(8192).unwrap();
            let address = segment.bytes_mut().unwrap().as_mut_ptr();
            let handle = segment.pin_address().unwrap();
            if publish {
                drop(segment.freeze().unwrap())
            } else {
                drop(segment)
            }
            // The memory is not reused for another segment.
            let mut other = memory.reserve(8192).unwrap();
            // SAFETY: the handle keeps the address mapped and writable for its 8192 bytes, and no other reference to it
            // exists.
            let aliased = unsafe { std::slice::from_raw_parts_mut(address, 8192) };
            aliased.fill(9);
            assert_eq!(other.bytes_mut().unwrap(), [0; 8192]);
            assert_eq!(aliased, [9; 8192]);
            drop(handle);
        }
        assert!(memory.reserve(8192).unwrap().pin_address().is_none());
    }
}

/// Another mapping of the same memfd stands for another process.
#[test]
fn foreign_memfd_is_written_until_it_is_published() {
    for memory in memories_with_aliases() {
        assert!(memory.reserve(8192).unwrap().writable_fd().is_none());
        let segment = memory.reserve_aliased(8192).unwrap();
        let fd = || segment.writable_fd().unwrap().try_clone_to_owned().unwrap();
        let foreign = ForeignMemfd::open(fd(), 8192).unwrap();
        assert_eq!(ForeignMemfd::open(fd(), 1 << 30).err().unwrap().kind(), ErrorKind::Refused);
        let later = fd();
        // SAFETY: the mapping has 8192 bytes, and no other reference to them exists.
        let written = unsafe { std::slice::from_raw_parts_mut(foreign.start().as_ptr(), 8192) };
        written.fill(7);
        let published = segment.freeze().unwrap();
        assert_eq!(published.bytes().unwrap(), [7; 8192]);
        written.fill(8);
        assert_eq!(published.bytes().unwrap(), [7; 8192], "the publisher copied it");
        drop(foreign);

        let segment = memory.reserve_aliased(8192).unwrap();
        let fd = segment.writable_fd().unwrap().try_clone_to_owned().unwrap();
        drop(ForeignMemfd::open(fd.try_clone().unwrap(), 8192).unwrap());
        let published = segment.freeze().unwrap();
        assert_eq!(ForeignMemfd::open(fd, 8192).err().unwrap().kind(), ErrorKind::Conflict);
        drop((published, later));
    }
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    assert_eq!(ForeignMemfd::open(file.into(), 1).err().unwrap().kind(), ErrorKind::Refused);
}

#[test]
fn slices_share_the_mapping_and_are_bounds_checked() {
    let segment = published();
    let copy = Arc::new(SealedMemfd::open(received(&*segment), 8192, Guarantee::Immutable).unwrap());
    let slice = copy.slice(128..200).unwrap();
    assert_eq!((slice.len(), slice.fd_offset()), (72, 128));
    assert_eq!(slice.bytes().unwrap().as_ptr(), copy.bytes().unwrap()[128..].as_ptr());
    assert!(copy.slice(8192..8192).unwrap().is_empty());
    for wrong in [100..200, 8128..8193, 8256..8256, usize::MAX - 63..usize::MAX] {
        assert_eq!(copy.slice(wrong.clone()).err().unwrap().kind(), ErrorKind::Invalid, "{wrong:?}");
    }
    drop(copy);
    assert_eq!(slice.bytes().unwrap(), [7; 72]);
}

#[test]
fn open_refuses_unsealed_sparse_and_foreign_files() {
    let refused = |fd: OwnedFd, len, guarantee, reason: &str| {
        let error = SealedMemfd::open(fd, len, guarantee).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        assert!(error.to_string().contains(reason), "{error}");
    };
    let memfd = |len: usize, seals| {
        let fd = create_memfd("x").unwrap();
        ftruncate(&fd, len as u64).unwrap();
        fcntl_add_seals(&fd, seals).unwrap();
        fd
    };
    let size = SealFlags::SHRINK | SealFlags::GROW;
    let all = size | SealFlags::WRITE;
    for guarantee in [Guarantee::Immutable, Guarantee::ProducerOnly] {
        let exe = std::fs::File::open("/proc/self/exe").unwrap();
        refused(exe.into(), 0, guarantee, "not a memfd");
        refused(memfd(0, SealFlags::empty()), 0, guarantee, "seals");
        for partial in [all - SealFlags::WRITE, all - SealFlags::SHRINK, all - SealFlags::GROW] {
            refused(memfd(0, partial), 0, guarantee, "seals");
        }
        refused(memfd(4096, all), 4096, guarantee, "backed");
        let too_long = TENSOR_BYTES_MAX as usize * 2;
        refused(memfd(too_long, all), too_long, guarantee, "announced");
        for len in [0, 8191, 8193, usize::MAX] {
            refused(received(&*published()), len, guarantee, "announced");
        }
    }
    refused(memfd(0, size | SealFlags::FUTURE_WRITE), 0, Guarantee::Immutable, "seals");
    assert!(SealedMemfd::open(received(&*published()), 8192, Guarantee::ProducerOnly).is_ok(), "more than asked for");
}

#[test]
fn pages_for_drivers_are_those_of_all_processes() {
    let sealed = SealedMemfd::open_once(received(&*published()), 8192, Guarantee::Immutable).unwrap();
    let bytes = sealed.bytes().unwrap();
    let (shared, offset) = shared_bytes(&*sealed).unwrap();
    assert_eq!((shared, offset), (bytes, 0));
    let permissions = |bytes: &[u8]| range_at(bytes.as_ptr()).unwrap().range.permissions;
    assert_eq!(permissions(bytes), "r--p");
    assert_eq!(permissions(shared), "r--s", "a driver gets copies of a private mapping");
    assert_eq!(shared_bytes(&*sealed).unwrap().0.as_ptr(), shared.as_ptr(), "one mapping for each memfd");

    let slice = sealed.slice(64..192).unwrap();
    let (whole, offset) = shared_bytes(&*slice).unwrap();
    assert_eq!((whole.as_ptr(), whole.len(), offset), (shared.as_ptr(), 8192, 64));
    assert_eq!(&whole[offset..][..slice.len()], slice.bytes().unwrap());

    let slab = SealedMemfd::open_once(received(&*published()), 8192, Guarantee::ProducerOnly).unwrap();
    assert_eq!(shared_bytes(&*slab).err().unwrap().kind(), ErrorKind::Unsupported);
}

#[test]
fn sealing_fails_while_another_mapping_can_write() {
    let memfd = MemfdMut::create(4096).unwrap();
    let other = Mapping::new(memfd.fd.as_fd(), 4096, Access::Write).unwrap();
    assert_eq!(memfd.seal().err().unwrap().kind(), ErrorKind::Conflict);
    drop(other);
}

/// As when a forked child starts another program.
#[test]
fn sealing_succeeds_once_the_other_mapping_is_unmapped() {
    let fd = create_memfd("x").unwrap();
    ftruncate(&fd, 4096).unwrap();
    let mut other = Some(Mapping::new(fd.as_fd(), 4096, Access::Write).unwrap());
    let mut waits = 0;
    let unmap_on_third_wait = || {
        waits += 1;
        if waits == 3 {
            other = None;
        }
    };
    seal_with_retry(&fd, Guarantee::Immutable, unmap_on_third_wait).unwrap();
    assert_eq!(waits, 3);
}

#[test]
fn sealing_publishes_the_used_part_at_the_same_address() {
    let mut memfd = MemfdMut::create(100_000).unwrap();
    memfd.prefault().unwrap();
    let present = range_at(SegmentMut::bytes(&memfd).unwrap().as_ptr()).unwrap().rss_bytes;
    assert!(present >= 100_000, "{present}");
    memfd.resize(5000);
    memfd.write_at(0, &[3; 5000]).unwrap();
    assert!(memfd.write_at(4999, &[0; 2]).is_err());
    let address = SegmentMut::bytes(&memfd).unwrap().as_ptr();
    let sealed = memfd.seal().unwrap();
    assert_eq!((sealed.bytes().unwrap(), sealed.bytes().unwrap().as_ptr()), (&[3; 5000][..], address));
    assert_eq!(fstat(sealed.fd().unwrap()).unwrap().st_size, 5000);
    assert!(SealedMemfd::open(received(&sealed), 5000, Guarantee::Immutable).is_ok());
}

#[test]
fn memory_is_made_by_the_first_access() {
    for len in [1, 5000, 2 << 20, (2 << 20) + 5000, (9 << 20) + 1] {
        let source: Vec<u8> = (0..len).map(|i| (i % 253) as u8).collect();
        let whole = |memfd: &mut MemfdMut| memfd.write_at(0, &source).unwrap();
        let parts = |memfd: &mut MemfdMut| {
            memfd.write_at(len / 2, &source[len / 2..]).unwrap();
            memfd.write_at(0, &source[..len / 2]).unwrap();
        };
        let in_place = |memfd: &mut MemfdMut| memfd.bytes_mut().unwrap().copy_from_slice(&source);
        let fills: [&dyn Fn(&mut MemfdMut); 3] = [&whole, &parts, &in_place];
        for (way, fill) in fills.into_iter().enumerate() {
            // Longer than the tensor, as in a pool.
            let mut memfd = MemfdMut::create_to_fill(len.next_multiple_of(4096) + 8192).unwrap();
            memfd.resize(len);
            assert!(!memfd.is_backed());
            fill(&mut memfd);
            assert!(memfd.is_backed());
            let sealed = memfd.seal().unwrap();
            assert!(sealed.bytes().unwrap() == source, "{len} bytes, way {way}");
            check_no_holes(sealed.fd().unwrap(), len).unwrap();
        }
        let unwritten = MemfdMut::create_to_fill(len).unwrap().seal().unwrap();
        assert!(unwritten.bytes().unwrap().iter().all(|&byte| byte == 0));
        check_no_holes(unwritten.fd().unwrap(), len).unwrap();
    }
}

/// As a transfer makes the memory of a copy, whose bytes come from several sources at once.
#[test]
fn memory_is_made_part_by_part() {
    for len in [1, 5000, (9 << 20) + 1, 20 << 20] {
        let pool = MemfdPool::new(0);
        let mut segment = pool.reserve_aliased(len).unwrap();
        let address = segment.unpopulated_address().unwrap();
        let fd = segment.writable_fd().unwrap().try_clone_to_owned().unwrap();
        let made_bytes = || fstat(&fd).unwrap().st_blocks as usize * 512;
        assert_eq!(made_bytes(), 0, "{len}");
        assert_eq!(segment.populate(len..len + 1).unwrap_err().kind(), ErrorKind::Invalid);
        segment.populate(len - 1..len).unwrap();
        assert!(made_bytes() > 0 && (len < 8 << 20 || made_bytes() < len), "{len}: {} bytes", made_bytes());
        // SAFETY: the segment keeps its bytes mapped and writable, and no reference to them exists.
        unsafe { address.add(len - 1).write(7) };
        std::thread::scope(|threads| {
            for start in (0..len).step_by(1 << 20) {
                let segment = &segment;
                threads.spawn(move || segment.populate(start..len.min(start + (1 << 20))).unwrap());
            }
        });
        assert!(made_bytes() >= len, "{len}");
        let published = segment.freeze().unwrap();
        let (last, rest) = published.bytes().unwrap().split_last().unwrap();
        assert!(*last == 7 && rest.iter().all(|&byte| byte == 0), "{len}");
        check_no_holes(published.fd().unwrap(), len).unwrap();
    }
}

#[test]
fn memory_that_is_partly_made_is_made_by_other_accesses_and_by_sealing() {
    let len = 20 << 20;
    let begun = || {
        let memfd = MemfdMut::create_to_fill(len).unwrap();
        memfd.populate(0..1).unwrap();
        assert!(!memfd.is_backed());
        memfd
    };
    let sealed = begun().seal().unwrap();
    check_no_holes(sealed.fd().unwrap(), len).unwrap();
    assert!(sealed.bytes().unwrap().iter().all(|&byte| byte == 0));
    let mut written = begun();
    written.write_at(0, &vec![7; len]).unwrap();
    assert!(written.is_backed() && written.seal().unwrap().bytes().unwrap().iter().all(|&byte| byte == 7));
}

#[test]
fn dropping_returns_descriptor_and_mapping() {
    // Other tests may run in this process at the same time, so a leak shows as growth over many rounds.
    for _ in 0..2000 {
        let mut memfd = MemfdMut::create(16384).unwrap();
        memfd.resize(8192);
        let sealed = memfd.seal().unwrap();
        assert!(sealed.bytes().is_some() && PrivateMapping::of(&sealed, 0..10).is_ok());
    }
    let pid = std::process::id();
    assert!(fd_count(pid).unwrap() < 500);
    assert!(mapping_count(pid).unwrap() < 1000);
}
