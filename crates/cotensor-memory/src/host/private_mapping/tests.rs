use super::PrivateMapping;
use crate::process::{mapping_count, range_at};
use crate::{Guarantee, MemfdMut, SealedMemfd, Slab};
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
fn readers_do_not_commit_memory() {
    if std::fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap().trim() == "2" {
        return eprintln!("not tested: vm.overcommit_memory is 2");
    }
    let slab = Slab::create(1 << 16).unwrap();
    let small = slab.copy_of(&[1; 100]).unwrap().freeze().unwrap();
    let large = MemfdMut::create(1 << 20).unwrap().seal().unwrap();
    let mut aliased = crate::MemfdMemory.reserve_aliased(1 << 20).unwrap();
    aliased.write_at(0, &[1; 100]).unwrap();
    let pinned = aliased.bytes().unwrap().as_ptr() as u64;
    let _published = aliased.freeze().unwrap();
    for segment in [&*small, &large as &dyn Segment] {
        let copy = PrivateMapping::of(segment, 0..100).unwrap();
        assert_eq!(committed(copy.address().addr().get() as u64), Some(false));
    }
    assert_eq!(committed(pinned), Some(false), "the address that the producer keeps");
}

/// Whether the range at an address counts in `Committed_AS`: it has the flag `ac` in `smaps`.
fn committed(address: u64) -> Option<bool> {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut lines = smaps.lines();
    lines.find(|line| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        range.is_some_and(|(start, end)| {
            number(start).is_some_and(|start| start <= address) && number(end).is_some_and(|end| address < end)
        })
    })?;
    let flags = lines.find_map(|line| line.strip_prefix("VmFlags:"))?;
    Some(flags.split_whitespace().any(|flag| flag == "ac"))
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
    let len = 2048 * page_size();
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
fn readers_of_small_tensors_share_mappings() {
    let slab = Slab::create(4 << 20).unwrap();
    let parts: Vec<_> =
        (0..4000u32).map(|i| slab.copy_of(&i.to_ne_bytes().repeat(200)).unwrap().freeze().unwrap()).collect();
    let received =
        SealedMemfd::open(slab.fd().try_clone_to_owned().unwrap(), slab.len(), Guarantee::ProducerOnly).unwrap();
    let before = mapping_count(std::process::id()).unwrap();
    let mut copies: Vec<_> = parts.iter().map(|part| PrivateMapping::of(&**part, 0..800).unwrap()).collect();
    let of_received = |part: &Arc<dyn Segment>| {
        PrivateMapping::of(&received, part.fd_offset()..part.fd_offset() + part.len()).unwrap()
    };
    let of_other: Vec<_> = parts.iter().map(of_received).collect();
    let added = mapping_count(std::process::id()).unwrap().saturating_sub(before);
    assert!(added < 100, "{added} mappings");
    assert!(parts.iter().zip(&of_other).all(|(part, copy)| part.bytes().unwrap() == copy.bytes()));
    copies[7].bytes_mut().fill(9);
    for (i, copy) in (0u32..).zip(&copies) {
        let expected = if i == 7 { vec![9; 800] } else { i.to_ne_bytes().repeat(200) };
        assert_eq!(copy.bytes(), expected, "{i}");
    }
}

#[test]
fn written_page_does_not_hide_a_later_tensor() {
    let slab = Slab::create(1 << 16).unwrap();
    let tensor = |byte| slab.copy_of(&[byte; 64]).unwrap().freeze().unwrap();
    let (first, beside) = (tensor(1), tensor(2));
    let mut written = PrivateMapping::of(&*first, 0..64).unwrap();
    let address = written.address();
    let neighbour = PrivateMapping::of(&*beside, 0..64).unwrap();
    written.bytes_mut().fill(7);
    assert_eq!(written.close().unwrap(), page_size() as u64);
    drop(first);
    // In the range of the first one, whose page still has the copy for the neighbour.
    let next = tensor(3);
    let copy = PrivateMapping::of(&*next, 0..64).unwrap();
    assert_eq!((copy.bytes(), neighbour.bytes()), (&[3; 64][..], &[2; 64][..]));
    drop((copy, neighbour));
    // No reader is left, so the copy is dropped.
    let again = PrivateMapping::of(&*next, 0..64).unwrap();
    assert_eq!((again.bytes(), again.dirty_bytes().unwrap()), (&[3; 64][..], 0));
    assert_eq!(again.address(), address, "the window has readers again");
}

/// Readers come, write and end in any order, and ranges are reused.
#[test]
fn each_reader_sees_its_own_writes_and_no_others() {
    let slab = Slab::create(1 << 16).unwrap();
    let mut state = 1u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let mut tensors: Vec<(Arc<dyn Segment>, u8)> = Vec::new();
    let mut readers: Vec<(Arc<dyn Segment>, PrivateMapping, Vec<u8>)> = Vec::new();
    for round in 0..20_000 {
        let byte = (round % 251) as u8;
        match random(6) {
            0 if tensors.len() < 40 => {
                let content = vec![byte; 1 + random(9000).min(random(9000))];
                if let Ok(made) = slab.copy_of(&content) {
                    tensors.push((made.freeze().unwrap(), byte));
                }
            }
            1 if tensors.len() > 10 => drop(tensors.swap_remove(random(tensors.len()))),
            2 | 3 if !tensors.is_empty() && readers.len() < 100 => {
                let (tensor, byte) = &tensors[random(tensors.len())];
                let copy = PrivateMapping::of(&**tensor, 0..tensor.len()).unwrap();
                readers.push((Arc::clone(tensor), copy, vec![*byte; tensor.len()]));
            }
            4 if !readers.is_empty() => {
                let index = random(readers.len());
                let (_, copy, expected) = &mut readers[index];
                let at = random(expected.len());
                copy.bytes_mut()[at] = !byte;
                expected[at] = !byte;
            }
            5 if readers.len() > 20 => {
                let (tensor, copy, expected) = readers.swap_remove(random(readers.len()));
                assert_eq!(copy.bytes(), expected);
                // As an array and its lease end.
                drop(copy);
                drop(tensor);
            }
            _ => {}
        }
        if round % 50 == 0 {
            readers.iter().for_each(|(_, copy, expected)| assert_eq!(copy.bytes(), expected, "round {round}"));
        }
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
    assert!(PrivateMapping::of(&sealed, 0..10_001).is_err() && PrivateMapping::of(&sealed, 10_001..10_001).is_err());
}
