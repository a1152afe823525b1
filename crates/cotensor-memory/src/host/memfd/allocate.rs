//! New anonymous memory: all of it there before anybody is told, in huge pages where the kernel has them.

use crate::host::parallel_copy::part_bytes;
use crate::mapping::{Access, Mapping, huge_page_bytes};
use crate::process::{available_with_swap_bytes, fd_error, move_above_select};
use cotensor_core::{Error, ErrorKind, Result, padded, size};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};

/// For less, nobody looks first what is left.
const LARGE_BYTES: usize = 64 << 20;

/// A new memfd of `len` zeroed bytes, all of them backed, that can be sealed; mapped for writing.
///
/// Huge pages make it several times cheaper to seal (the writable mapping has to go first), to read for the first time
/// and to give back; they are made at once, because a page that was small when it was written would have to be copied.
///
/// Children that are forked have it where `inherited`; else they have not even while it is being made, as one that can write
/// it would keep it from being sealed.
pub(crate) fn allocate(len: usize, inherited: bool) -> Result<(OwnedFd, Mapping)> {
    padded(len)?;
    check_left(len)?;
    let io =
        |what: &str, error: Errno| Error::io(format!("{what} {} of shared memory", size(len as u64)), &error.into());
    let fd = memfd_create("cotensor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(|error| fd_error(&format!("cannot make {} of shared memory", size(len as u64)), error))?;
    let fd = move_above_select(fd);
    ftruncate(&fd, len as u64).map_err(|error| io("cannot size", error))?;
    let mut map = Mapping::new(fd.as_fd(), len, Access::Write)?;
    if !inherited {
        map.set_inherited_on_fork(false)?;
    }
    if len > 0 {
        make_huge(&mut map);
        // Backed now or refused now: a page that is missing later would be a SIGBUS for whoever touches it.
        fallocate(&fd, FallocateFlags::empty(), 0, len as u64).map_err(|error| io("cannot reserve", error))?;
    }
    Ok((fd, map))
}

/// All of a memfd is backed at once, and the kernel ends a process rather than refuse it the last pages of the system.
fn check_left(len: usize) -> Result<()> {
    if len < LARGE_BYTES {
        return Ok(());
    }
    match available_with_swap_bytes() {
        Some(left) if (len as u64) > left => {
            let message =
                format!("{} do not fit the {} of memory that the system has left", size(len as u64), size(left));
            Err(Error::new(ErrorKind::OverBudget, message))
        }
        _ => Ok(()),
    }
}

/// Backs what it can by huge pages, on several threads. Where the kernel has none to give, small ones come later.
fn make_huge(map: &mut Mapping) {
    let Some(page) = huge_page_bytes().filter(|&page| page <= map.len()) else { return };
    let map = &*map;
    let len = map.len() - map.len() % page;
    let part = part_bytes(len).next_multiple_of(page);
    std::thread::scope(|threads| {
        for start in (part..len).step_by(part) {
            threads.spawn(move || map.collapse(start..len.min(start + part), page));
        }
        map.collapse(0..len.min(part), page);
    });
}
