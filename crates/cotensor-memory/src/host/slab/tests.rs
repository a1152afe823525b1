use super::Slab;
use crate::host::memfd::Guarantee;
use crate::mapping::{Access, Mapping};
use crate::process::range_at;
use crate::{PrivateMapping, SealedMemfd};
use cotensor_core::{ErrorKind, Memory, Segment, SegmentMut};
use rustix::fs::{FallocateFlags, Mode, OFlags, SealFlags, fallocate, fcntl_get_seals, ftruncate, open};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

fn received(slab: &Slab) -> Arc<SealedMemfd> {
    let fd = slab.fd().try_clone_to_owned().unwrap();
    Arc::new(SealedMemfd::open(fd, slab.len(), Guarantee::ProducerOnly).unwrap())
}

#[test]
fn slab_conforms() {
    cotensor_core::testing::conformance(&Slab::create(2 << 20).unwrap());
}

#[test]
fn receiver_reads_what_the_producer_writes() {
    let slab = Slab::create(1 << 20).unwrap();
    let receiver = received(&slab);
    slab.copy_of(&[1; 100]).unwrap();
    let kept = slab.copy_of(&[2; 100]).unwrap().freeze().unwrap();
    let part = slab.copy_of(&[3; 1000]).unwrap().freeze().unwrap();
    for (segment, value) in [(&kept, 2), (&part, 3)] {
        let slice = receiver.slice(segment.fd_offset()..segment.fd_offset() + segment.len()).unwrap();
        assert_eq!(slice.bytes().unwrap(), vec![value; segment.len()]);
        assert_eq!(slice.bytes(), segment.bytes());
    }
    assert_ne!(kept.fd_offset(), part.fd_offset());
}

#[test]
fn receiver_cannot_write_or_resize_the_slab() {
    let slab = Slab::create(8192).unwrap();
    let segment = slab.copy_of(&[7; 8192]).unwrap().freeze().unwrap();
    let fd = segment.fd().unwrap();
    assert!(fcntl_get_seals(fd).unwrap().contains(SealFlags::SEAL | SealFlags::FUTURE_WRITE));
    assert!(Mapping::new(fd, 8192, Access::Write).is_err(), "no writable mapping");
    assert!(ftruncate(fd, 0).is_err() && ftruncate(fd, 16384).is_err(), "no resizing");
    assert!(rustix::io::write(fd, b"x").is_err(), "no writing");
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert!(fallocate(fd, hole, 0, 4096).is_err(), "no holes");
    if let Ok(reopened) = open(format!("/proc/self/fd/{}", fd.as_raw_fd()), OFlags::RDWR, Mode::empty()) {
        assert!(rustix::io::write(&reopened, b"x").is_err(), "no writing after reopening");
        assert!(Mapping::new(reopened.as_fd(), 8192, Access::Write).is_err());
    }
    // A receiver that writes in place writes private pages.
    let receiver = received(&slab);
    PrivateMapping::of(&*receiver, 0..8192).unwrap().bytes_mut().fill(9);
    assert!(segment.bytes().unwrap().iter().chain(receiver.bytes().unwrap()).all(|&byte| byte == 7));
}

#[test]
fn range_is_reused_after_its_last_holder_drops_it() {
    let slab = Slab::create(4096).unwrap();
    let first = slab.copy_of(&[1; 4000]).unwrap().freeze().unwrap();
    let lease = Arc::clone(&first);
    drop(first);
    let full = slab.reserve(4000).err().unwrap();
    assert_eq!((full.kind(), slab.free_bytes()), (ErrorKind::OverBudget, 64));
    assert_eq!(lease.bytes().unwrap(), [1; 4000]);
    let offset = lease.fd_offset();
    drop(lease);
    let again = slab.reserve(4096).unwrap();
    assert_eq!(again.bytes().unwrap(), [0; 4096], "the earlier bytes do not show");
    assert_eq!(again.freeze().unwrap().fd_offset(), offset);
}

#[test]
fn segments_have_distinct_offsets_even_when_empty() {
    let slab = Slab::create(256).unwrap();
    let segments: Vec<_> = [0, 10, 0, 64].map(|len| slab.reserve(len).unwrap().freeze().unwrap()).into();
    let mut starts: Vec<usize> = segments.iter().map(|segment| segment.fd_offset()).collect();
    starts.sort_unstable();
    assert_eq!((starts, slab.free_bytes()), (vec![0, 64, 128, 192], 0));
    assert_eq!(slab.reserve(0).err().unwrap().kind(), ErrorKind::OverBudget);
    drop(segments);
    assert_eq!(slab.free_bytes(), 256);
}

#[test]
fn segments_outlive_the_slab_handle() {
    let slab = Slab::create(4096).unwrap();
    let segment = slab.copy_of(&[5; 10]).unwrap().freeze().unwrap();
    drop(slab);
    assert_eq!(segment.bytes().unwrap(), [5; 10]);
}

#[test]
fn threads_never_allocate_the_same_bytes() {
    let slab = Slab::create(64 << 10).unwrap();
    slab.prefault().unwrap();
    std::thread::scope(|threads| {
        for thread in 0..4u8 {
            let slab = &slab;
            threads.spawn(move || {
                let mut held: Vec<Arc<dyn Segment>> = Vec::new();
                for i in 0..2000usize {
                    match slab.copy_of(&vec![thread; i % 3000]) {
                        Ok(part) => held.push(part.freeze().unwrap()),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::OverBudget),
                    }
                    if held.len() > i % 7 {
                        let segment = held.swap_remove(i % held.len());
                        assert!(segment.bytes().unwrap().iter().all(|&byte| byte == thread));
                    }
                }
            });
        }
    });
    assert_eq!(slab.free_bytes(), slab.len());
}

#[test]
fn published_segments_are_read_through_a_read_only_mapping() {
    let slab = Slab::create(8192).unwrap();
    let mut part = slab.reserve(8192).unwrap();
    let target = part.bytes_mut().unwrap();
    target.fill(7);
    let written = range_at(target.as_ptr()).unwrap();
    assert_eq!((written.range.permissions.as_str(), written.inherited_on_fork), ("rw-s", false));
    let published = part.freeze().unwrap();
    let read = range_at(published.bytes().unwrap().as_ptr()).unwrap();
    assert_eq!((read.range.permissions.as_str(), read.inherited_on_fork), ("r--p", true));
    assert_eq!(
        (read.range.inode, published.bytes().unwrap()),
        (written.range.inode, &[7; 8192][..]),
        "the same memory"
    );
}

#[test]
fn forked_child_does_not_use_the_slab() {
    let mut slab = Slab::create(4096).unwrap();
    // As after a fork: the slab's owner is another process.
    Arc::get_mut(&mut slab.shared).unwrap().ranges.owner += 1;
    assert_eq!(slab.copy_of(&[1]).err().unwrap().kind(), ErrorKind::Conflict);
    assert_eq!(slab.free_bytes(), 4096);
    Arc::get_mut(&mut slab.shared).unwrap().ranges.owner -= 1;
    let mut part = slab.allocate(64).unwrap().0;
    drop(slab);
    Arc::get_mut(&mut part.slab).unwrap().ranges.owner += 1;
    assert!(part.bytes_mut().is_none());
    assert_eq!(part.write_at(0, &[1]).err().unwrap().kind(), ErrorKind::Conflict);
    assert_eq!(Segment::bytes(&part).unwrap(), [0; 64], "inherited bytes stay readable");
}
