//! New memfds, fully backed by memory, with huge pages as far as the kernel has any.

use crate::host::parallel_copy::part_bytes;
use crate::mapping::{Access, Mapping, OnFork, huge_page_bytes};
use crate::process::{check_memory, create_segment_memfd, move_above_select};
use cotensor_core::{Error, Result, padded, size};
use rustix::fs::{FallocateFlags, fallocate, ftruncate};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};

/// Creates a sealable memfd of `len` zeroed bytes, reserves all of its pages and maps it for writing.
///
/// Huge pages make sealing, the first read and freeing several times cheaper. They are created before the first write,
/// which would otherwise create small pages to be copied.
///
/// The kernel kills a process instead of refusing the last pages of the system or of a control group, so they are checked
/// first.
///
/// With [`OnFork::Exclude`], a child that is forked meanwhile cannot write the memfd, so it cannot keep it from being
/// sealed.
pub(crate) fn allocate(len: usize, on_fork: OnFork) -> Result<(OwnedFd, Mapping)> {
    padded(len)?;
    let _pending = check_memory(len)?;
    let io =
        |what: &str, error: Errno| Error::io(format!("{what} {} of shared memory", size(len as u64)), &error.into());
    let fd = move_above_select(create_segment_memfd()?);
    ftruncate(&fd, len as u64).map_err(|error| io("cannot size", error))?;
    let map = Mapping::new(fd.as_fd(), len, Access::Write)?;
    map.set_on_fork(on_fork)?;
    if len > 0 {
        create_huge_pages(&map);
        // A missing page would raise SIGBUS in any process that accesses it later.
        fallocate(&fd, FallocateFlags::empty(), 0, len as u64).map_err(|error| io("cannot reserve", error))?;
    }
    Ok((fd, map))
}

/// Collapses all whole huge pages of a new mapping, on several threads.
fn create_huge_pages(map: &Mapping) {
    let Some(page) = huge_page_bytes().filter(|&page| page <= map.len()) else { return };
    let len = map.len() - map.len() % page;
    let part = part_bytes(len).next_multiple_of(page);
    std::thread::scope(|threads| {
        for start in (part..len).step_by(part) {
            threads.spawn(move || map.collapse(start..len.min(start + part), page));
        }
        map.collapse(0..len.min(part), page);
    });
}
