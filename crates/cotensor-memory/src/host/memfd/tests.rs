use super::{Guarantee, MemfdMemory, MemfdMut, SealedMemfd};
use crate::PrivateMapping;
use crate::mapping::{Access, Mapping};
use crate::process::range_at;
use cotensor_core::{ErrorKind, Memory, MemoryKind, Segment, SegmentMut, TENSOR_BYTES_MAX};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create, open};
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
fn conforms() {
    cotensor_core::testing::conformance(&MemfdMemory);
}

#[test]
fn nobody_can_write_or_resize_what_is_published() {
    let segment = published();
    let fd = segment.fd().unwrap();
    assert!(Mapping::new(fd, 8192, Access::Write).is_err(), "no writable mapping");
    assert!(ftruncate(fd, 0).is_err() && ftruncate(fd, 16384).is_err(), "no resizing");
    assert!(rustix::io::write(fd, b"x").is_err(), "no writing");
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    if let Ok(reopened) = open(path, OFlags::RDWR, Mode::empty()) {
        assert!(rustix::io::write(&reopened, b"x").is_err(), "reopening does not help");
        assert!(Mapping::new(reopened.as_fd(), 8192, Access::Write).is_err());
    }
    assert!(segment.bytes().unwrap().iter().all(|&byte| byte == 7));
}

#[test]
fn a_second_holder_maps_the_same_pages() {
    let segment = published();
    let copy = SealedMemfd::open(received(&*segment), 8192, Guarantee::Immutable).unwrap();
    let inode = fstat(segment.fd().unwrap()).unwrap().st_ino;
    for bytes in [segment.bytes().unwrap(), copy.bytes().unwrap()] {
        let mapping = range_at(bytes.as_ptr()).unwrap();
        assert_eq!(mapping.range.inode, inode, "the file itself, no copy of it");
        assert_eq!(mapping.range.permissions, "r--p", "kernels before 6.7 refuse a shared map of a write-sealed file");
    }
    drop(segment);
    assert_eq!(copy.bytes().unwrap(), [7; 8192]);
}

#[test]
fn a_segment_that_this_process_has_open_is_not_opened_twice() {
    let made = published();
    let before = crate::process::fd_count(std::process::id()).unwrap();
    let open = || SealedMemfd::open_once(received(&*made), 8192, Guarantee::Immutable).unwrap();
    let copies: Vec<_> = (0..100).map(|_| open()).collect();
    assert_eq!(crate::process::fd_count(std::process::id()).unwrap(), before, "one descriptor");
    assert!(copies.iter().all(|copy| copy.bytes().unwrap().as_ptr() == made.bytes().unwrap().as_ptr()), "one mapping");
    let kept = received(&*made);
    drop((made, copies));
    // Nobody has it any more: it is checked, and opened, again.
    let again = || SealedMemfd::open_once(kept.try_clone().unwrap(), 8192, Guarantee::Immutable).unwrap();
    let (one, other) = (again(), again());
    assert!(Arc::ptr_eq(&one, &other));
    assert_eq!(one.bytes().unwrap(), [7; 8192]);
    assert!(SealedMemfd::open_once(kept, 8191, Guarantee::Immutable).is_err(), "of another length it is refused");
}

/// What a program that kept the address does after publishing.
#[test]
fn writing_on_at_an_exposed_address_changes_nothing_that_others_see() {
    for memory in [Box::new(MemfdMemory) as Box<dyn Memory>, Box::new(crate::MemfdPool::new(1 << 20))] {
        let mut segment = memory.reserve_aliased(8192).unwrap();
        let kept = segment.bytes_mut().unwrap();
        kept.fill(7);
        let kept = kept.as_mut_ptr();
        let segment = segment.freeze().unwrap();
        let received = SealedMemfd::open(received(&*segment), 8192, Guarantee::Immutable).unwrap();
        // SAFETY: the mapping stays, writable, as long as the segment, and nobody else uses it.
        let kept = unsafe { std::slice::from_raw_parts_mut(kept, 8192) };
        assert_eq!(kept, [7; 8192]);
        kept.fill(8);
        assert!(segment.bytes().unwrap() == [7; 8192] && received.bytes().unwrap() == [7; 8192]);
        assert_eq!(segment.kind(), MemoryKind::Memfd);
    }
}

/// What a program that kept the address sees when the tensor comes to nothing.
#[test]
fn an_exposed_address_stays_as_long_as_its_keepers() {
    for memory in [Box::new(MemfdMemory) as Box<dyn Memory>, Box::new(crate::MemfdPool::new(1 << 20))] {
        for published in [false, true] {
            let mut segment = memory.reserve_aliased(8192).unwrap();
            let kept = segment.bytes_mut().unwrap().as_mut_ptr();
            let keeper = segment.pin_address().unwrap();
            if published {
                drop(segment.freeze().unwrap())
            } else {
                drop(segment)
            }
            // It must not be anybody else's now.
            let mut other = memory.reserve(8192).unwrap();
            // SAFETY: the keeper has the mapping, writable, and nobody else uses it.
            let bytes = unsafe { std::slice::from_raw_parts_mut(kept, 8192) };
            bytes.fill(9);
            assert_eq!(other.bytes_mut().unwrap(), [0; 8192]);
            assert_eq!(bytes, [9; 8192]);
            drop(keeper);
        }
        assert!(memory.reserve(8192).unwrap().pin_address().is_none());
    }
}

#[test]
fn windows_are_parts_of_the_same_mapping() {
    let segment = published();
    let copy = Arc::new(SealedMemfd::open(received(&*segment), 8192, Guarantee::Immutable).unwrap());
    let window = copy.slice(128..200).unwrap();
    assert_eq!((window.len(), window.fd_offset()), (72, 128));
    assert_eq!(window.bytes().unwrap().as_ptr(), copy.bytes().unwrap()[128..].as_ptr());
    assert!(copy.slice(8192..8192).unwrap().is_empty());
    for wrong in [100..200, 8128..8193, 8256..8256, usize::MAX - 63..usize::MAX] {
        assert_eq!(copy.slice(wrong.clone()).err().unwrap().kind(), ErrorKind::Invalid, "{wrong:?}");
    }
    drop(copy);
    assert_eq!(window.bytes().unwrap(), [7; 72]);
}

#[test]
fn what_is_not_published_is_refused() {
    let refused = |fd: OwnedFd, len, guarantee, why: &str| {
        let error = SealedMemfd::open(fd, len, guarantee).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        assert!(error.to_string().contains(why), "{error}");
    };
    let memfd = |len: usize, seals| {
        let fd = memfd_create("x", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, len as u64).unwrap();
        fcntl_add_seals(&fd, seals).unwrap();
        fd
    };
    let size = SealFlags::SHRINK | SealFlags::GROW;
    let all = size | SealFlags::WRITE;
    for guarantee in [Guarantee::Immutable, Guarantee::ProducerOnly] {
        let exe = std::fs::File::open("/proc/self/exe").unwrap();
        refused(exe.into(), 0, guarantee, "no memfd");
        refused(memfd(0, SealFlags::empty()), 0, guarantee, "seals");
        for partly in [all - SealFlags::WRITE, all - SealFlags::SHRINK, all - SealFlags::GROW] {
            refused(memfd(0, partly), 0, guarantee, "seals");
        }
        refused(memfd(4096, all), 4096, guarantee, "backed");
        let endless = TENSOR_BYTES_MAX as usize * 2;
        refused(memfd(endless, all), endless, guarantee, "announced");
        for len in [0, 8191, 8193, usize::MAX] {
            refused(received(&*published()), len, guarantee, "announced");
        }
    }
    refused(memfd(0, size | SealFlags::FUTURE_WRITE), 0, Guarantee::Immutable, "seals");
    // What is more than asked for is fine.
    assert!(SealedMemfd::open(received(&*published()), 8192, Guarantee::ProducerOnly).is_ok());
}

#[test]
fn a_mapping_that_can_write_delays_sealing_and_prevents_it_if_it_stays() {
    let memfd = MemfdMut::create(4096).unwrap();
    let other = Mapping::new(memfd.fd.as_fd(), 4096, Access::Write).unwrap();
    assert_eq!(memfd.seal().err().unwrap().kind(), ErrorKind::Conflict);
    drop(other);

    let memfd = MemfdMut::create(4096).unwrap();
    let other = Mapping::new(memfd.fd.as_fd(), 4096, Access::Write).unwrap();
    let leaver = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(5));
        drop(other);
    });
    assert!(memfd.seal().is_ok(), "as when a forked child starts its own program");
    leaver.join().unwrap();
}

#[test]
fn a_part_that_is_used_is_all_that_is_published() {
    let mut memfd = MemfdMut::create(100_000).unwrap();
    memfd.prefault().unwrap();
    let present = range_at(SegmentMut::bytes(&memfd).unwrap().as_ptr()).unwrap().rss_bytes;
    assert!(present >= 100_000, "{present}");
    memfd.resize(5000);
    memfd.write_at(0, &[3; 5000]).unwrap();
    assert!(memfd.write_at(4999, &[0; 2]).is_err());
    let before = SegmentMut::bytes(&memfd).unwrap().as_ptr();
    let sealed = memfd.seal().unwrap();
    assert_eq!((sealed.bytes().unwrap(), sealed.bytes().unwrap().as_ptr()), (&[3; 5000][..], before));
    assert_eq!(fstat(sealed.fd().unwrap()).unwrap().st_size, 5000);
    assert!(SealedMemfd::open(received(&sealed), 5000, Guarantee::Immutable).is_ok());
}

#[test]
fn dropping_returns_descriptor_and_mapping() {
    // Other tests of this process run beside this one, so a leak shows as growth over many rounds.
    for _ in 0..2000 {
        let mut memfd = MemfdMut::create(16384).unwrap();
        memfd.resize(8192);
        let sealed = memfd.seal().unwrap();
        assert!(sealed.bytes().is_some() && PrivateMapping::of(&sealed, 0..10).is_ok());
    }
    assert!(crate::process::fd_count(std::process::id()).unwrap() < 500);
    assert!(crate::process::mapping_count(std::process::id()).unwrap() < 1000);
}
