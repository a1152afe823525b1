//! New memfds, fully backed by memory, with huge pages as far as the kernel has any.

use crate::host::helpers::in_chunks;
use crate::mapping::{Access, Mapping, OnFork, huge_page_bytes};
use crate::process::{PendingMemory, check_memory, create_segment_memfd, move_above_select};
use cotensor_core::{Error, Result, padded, size};
use rustix::fs::{FallocateFlags, fallocate, ftruncate};
use rustix::io::{Errno, pwrite};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

/// A memory is made in about this many parts: each call for huge pages waits for all processors, and what was collapsed just before it is filled
/// is still in a processor's cache.
const PARTS: usize = 8;
/// The longest part, and the shortest one without huge pages.
const PART_BYTES_MAX: usize = 16 << 20;
const PART_BYTES_MIN: usize = 2 << 20;

/// The length of a part, a multiple of the huge page `page`, which is not longer than the memory.
fn part_bytes(len: usize, page: usize) -> usize {
    (len / PARTS).clamp(page, PART_BYTES_MAX.max(page)).next_multiple_of(page)
}

/// A new memfd without memory.
pub(super) struct Unbacked {
    pub(super) fd: OwnedFd,
    pub(super) map: Mapping,
    /// Counts the memory until it exists.
    pub(super) pending: PendingMemory,
}

/// Creates a sealable memfd of `len` bytes and maps it for writing. Its memory must exist before a byte is accessed: a missing page would
/// raise SIGBUS in any process that accesses it.
///
/// The kernel kills a process instead of refusing the last pages of the system or of a control group, so they are checked
/// first.
///
/// With [`OnFork::Exclude`], a child that is forked meanwhile cannot write the memfd, so it cannot keep it from being
/// sealed.
pub(super) fn create(len: usize, on_fork: OnFork) -> Result<Unbacked> {
    padded(len)?;
    let pending = check_memory(len)?;
    let fd = move_above_select(create_segment_memfd()?);
    ftruncate(&fd, len as u64).map_err(|error| failed("cannot size", len, error))?;
    let map = Mapping::new(fd.as_fd(), len, Access::Write)?;
    map.set_on_fork(on_fork)?;
    Ok(Unbacked { fd, map, pending })
}

/// Creates a sealable memfd of `len` zeroed bytes, reserves all of its pages and maps it for writing. As for `create`.
pub(crate) fn allocate(len: usize, on_fork: OnFork) -> Result<(OwnedFd, Mapping)> {
    let Unbacked { fd, map, pending: _pending } = create(len, on_fork)?;
    back(fd.as_fd(), &map)?;
    Ok((fd, map))
}

/// Reserves all pages, which are zero.
///
/// Huge pages make sealing, the first read and freeing several times cheaper. They are created before the first write,
/// which would otherwise create small pages to be copied.
pub(super) fn back(fd: BorrowedFd<'_>, map: &Mapping) -> Result<()> {
    let len = map.len();
    if len == 0 {
        return Ok(());
    }
    if let Some(page) = huge_page_bytes().filter(|&page| page <= len) {
        in_chunks(len - len % page, part_bytes(len, page), &|range| {
            // Without huge pages there are small ones.
            map.collapse(range, page);
        });
    }
    reserve(fd, 0..len)
}

/// The length of the parts that [`back_part`] makes of a memory of `len` bytes.
pub(super) fn part_of(len: usize) -> usize {
    part_bytes(len, huge_page_bytes().unwrap_or(PART_BYTES_MIN))
}

/// Reserves the pages of a part, which are zero: huge ones, as far as the kernel has any.
pub(super) fn back_part(fd: BorrowedFd<'_>, map: &Mapping, part: Range<usize>) -> Result<()> {
    if let Some(page) = huge_page_bytes() {
        let huge = part.start..part.end - part.len() % page;
        if !huge.is_empty() {
            map.collapse(huge, page);
        }
    }
    reserve(fd, part)
}

/// Reserves all pages, and copies `source` to the start of the memory. Each part is collapsed just before it is filled. Without huge pages, the
/// kernel copies into new pages, which it need not zero and map before (decision 006).
pub(super) fn back_with(fd: BorrowedFd<'_>, map: &mut Mapping, source: &[u8]) -> Result<()> {
    let (len, failure) = (map.len(), OnceLock::new());
    let page = huge_page_bytes().unwrap_or(usize::MAX);
    let chunk = if page <= len { part_bytes(len, page) } else { len.max(1) };
    let map: &Mapping = map;
    let fill = |range: Range<usize>| {
        let is_collapsed = range.len().is_multiple_of(page) && map.collapse(range.clone(), page);
        let part = &source[range.clone()];
        if is_collapsed {
            // SAFETY: `source` is not longer than the mapping, whose range exists and which is borrowed exclusively by the caller. No other thread
            // writes this range.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), map.start().as_ptr().add(range.start), part.len()) };
        } else if let Err(error) = write_all(fd, part, range.start) {
            // The first one is reported.
            let _ = failure.set(error);
        }
    };
    let whole = source.len() - source.len() % page.min(source.len().max(1));
    in_chunks(whole, chunk, &fill);
    if whole < source.len() {
        fill(whole..source.len());
    }
    if let Some(error) = failure.into_inner() {
        return Err(failed("cannot reserve", len, error));
    }
    if source.len().next_multiple_of(rustix::param::page_size()) < len { reserve(fd, 0..len) } else { Ok(()) }
}

fn reserve(fd: BorrowedFd<'_>, range: Range<usize>) -> Result<()> {
    let reserved = fallocate(fd, FallocateFlags::empty(), range.start as u64, range.len() as u64);
    reserved.map_err(|error| failed("cannot reserve", range.len(), error))
}

fn write_all(fd: BorrowedFd<'_>, mut source: &[u8], start: usize) -> Result<(), Errno> {
    let mut at = start as u64;
    while !source.is_empty() {
        match pwrite(fd, source, at) {
            Ok(0) => return Err(Errno::NOSPC),
            Ok(written) => {
                source = &source[written..];
                at += written as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn failed(what: &str, len: usize, error: Errno) -> Error {
    Error::io(format!("{what} {} of shared memory", size(len as u64)), &error.into())
}
