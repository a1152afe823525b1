//! One mapping, unmapped on drop.

use super::huge_pages::huge_page_bytes;
use cotensor_core::{ALIGNMENT, Error, Result, size};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use rustix::param::page_size;
use std::ffi::c_void;
use std::num::NonZero;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

/// What a mapping is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Reading. Private, because the kernel counts a shared mapping of a writable descriptor as one that may write
    /// (before 6.7 it refuses one of a write-sealed memfd); it has the file's own pages all the same.
    Read,
    /// Writing into the file.
    Write,
    /// Reading the file's pages, and writing into a copy of each page that is written.
    CopyOnWrite,
}

impl Access {
    fn flags(self) -> (ProtFlags, MapFlags) {
        match self {
            Access::Read => (ProtFlags::READ, MapFlags::PRIVATE),
            Access::Write => (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED),
            Access::CopyOnWrite => (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE),
        }
    }
}

/// A mapping of a part of a file. Invariant M1: `start .. start + len` is mapped, readable, for as long as this lives.
/// Invariant M2: it is writable unless `access` is `Read`, and then this process writes it only through `bytes_mut`, or,
/// where it is a slab's or an index's, only through the slab's parts or the index's atomics, and nothing calls `bytes`.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
    access: Access,
}

// SAFETY: the mapping belongs to the process, not to a thread; reading needs a shared and writing an exclusive
// borrow of the `Mapping`, as for a `Vec`.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` only reads.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of `fd`.
    pub(crate) fn new(fd: BorrowedFd<'_>, len: usize, access: Access) -> Result<Self> {
        Self::at(fd, 0, len, access)
    }

    /// Maps `len` bytes of `fd` from `offset` on, which has to be a multiple of the page size.
    pub(crate) fn at(fd: BorrowedFd<'_>, offset: u64, len: usize, access: Access) -> Result<Self> {
        if len == 0 {
            let aligned = NonZero::new(ALIGNMENT).map_or(NonNull::dangling(), NonNull::without_provenance);
            return Ok(Self { start: aligned, len, access });
        }
        let (protection, flags) = access.flags();
        let map = |at: *mut c_void, flags| {
            // SAFETY: a new mapping at an address of the kernel's choice touches no memory that exists; at a room's, with
            // MAP_FIXED, it replaces that room, which nobody else knows.
            unsafe { mmap(at, len, protection, flags, fd, offset) }
        };
        let start = match huge_page_bytes() {
            // When that fails, the kernel may have unmapped the room already, and others be there: it is left as it is.
            Some(page) if len >= page => room(len, offset, page).and_then(|room| map(room, flags | MapFlags::FIXED)),
            _ => map(std::ptr::null_mut(), flags),
        };
        let start = start.map_err(|error| Error::io(format!("cannot map {}", size(len as u64)), &error.into()))?;
        let start = NonNull::new(start.cast()).ok_or_else(|| Error::unsupported("the system mapped address zero"))?;
        Ok(Self { start, len, access })
    }

    /// Replaces a mapping of the file's start by a private one of its first `len` bytes, at the same address: from here on
    /// nothing that this process writes there reaches the file.
    pub(crate) fn remap_private(mut self, fd: BorrowedFd<'_>, len: usize, access: Access) -> Result<Self> {
        debug_assert!(access != Access::Write);
        self.shorten(len);
        if self.len > 0 {
            let (protection, flags) = access.flags();
            let start = self.start.as_ptr().cast::<c_void>();
            // SAFETY: M1: the range is this mapping's own, page-aligned as mmap gave it, and `self` by value proves that
            // nobody borrows it. MAP_FIXED replaces it in one step, so the address is never free for others.
            let done = unsafe { mmap(start, self.len, protection, flags | MapFlags::FIXED, fd, 0) };
            if let Err(error) = done {
                // The kernel may have unmapped it already, and others be there: it is not unmapped again.
                std::mem::forget(self);
                return Err(Error::io("cannot map privately", &error.into()));
            }
        }
        self.access = access;
        Ok(self)
    }

    /// Unmaps the pages beyond the first `len` bytes.
    fn shorten(&mut self, len: usize) {
        let (kept, mapped) = (len.next_multiple_of(page_size()), self.len);
        if kept < mapped {
            // SAFETY: M1: the range is the end of this mapping, from a page's start on, and `&mut self` proves that
            // nobody borrows it. A failure would leave it mapped, which harms nobody.
            let _ = unsafe { munmap(self.start.as_ptr().add(kept).cast(), mapped - kept) };
        }
        self.len = len.min(mapped);
    }

    /// Makes every page of a writable mapping present, so that no write has to wait for the kernel. On one thread: the
    /// pages exist already, and more threads wait for each other's page tables.
    /// Kernels before 5.14 cannot, and lose only the time.
    pub(crate) fn populate(&self) -> Result<()> {
        if self.len == 0 {
            return Ok(());
        }
        // SAFETY: M1: the range is this mapping's own. The bytes do not change.
        match unsafe { madvise(self.start.as_ptr().cast(), self.len, Advice::LinuxPopulateWrite) } {
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(error) => Err(Error::io(format!("cannot back {}", size(self.len as u64)), &error.into())),
        }
    }

    /// Whether children that are forked from here on have it.
    pub(crate) fn set_inherited_on_fork(&self, inherit: bool) -> Result<()> {
        if self.len == 0 {
            return Ok(());
        }
        let advice = if inherit { Advice::LinuxDoFork } else { Advice::LinuxDontFork };
        // SAFETY: M1: the range is this mapping's own. Nothing changes in this process.
        unsafe { madvise(self.start.as_ptr().cast(), self.len, advice) }
            .map_err(|error| Error::io("cannot say what children inherit", &error.into()))
    }

    /// Backs `range` of a new writable mapping by huge pages of `page` bytes, of which it is a multiple, as far as the
    /// kernel has any: it is asked for one range after the other until it has none. The bytes do not change.
    pub(crate) fn collapse(&self, range: Range<usize>, page: usize) {
        debug_assert!(range.end <= self.len && self.access == Access::Write);
        for start in range.clone().step_by(page) {
            // SAFETY: M1: the page is inside. The kernel needs one to make a huge one of; without memory this is an error,
            // where touching it would be a signal.
            let page =
                unsafe { madvise(self.start.as_ptr().add(start).cast(), page_size(), Advice::LinuxPopulateRead) };
            if page.is_err() {
                return;
            }
        }
        // SAFETY: M1: the range is inside. Which pages hold the bytes is nothing that a program can see.
        let _ = unsafe { libc::madvise(self.start.as_ptr().add(range.start).cast(), range.len(), libc::MADV_COLLAPSE) };
    }

    /// Where the mapping starts.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: M1, and the borrow of `self` keeps the mapping. Files behind it are sealed, or our own and never
        // truncated: a writable map excludes other writers by M2.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        let writable = self.access != Access::Read;
        // SAFETY: M1 and M2; the exclusive borrow of `self` excludes other references.
        writable.then(|| unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) })
    }
}

/// Addresses for `len` bytes of a file from `offset` on, so that huge pages of the file can be mapped as such. They are
/// taken, by a mapping of nothing.
fn room(len: usize, offset: u64, page: usize) -> Result<*mut c_void, Errno> {
    let whole = len.checked_add(page).ok_or(Errno::NOMEM)?;
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory that exists.
    let found = unsafe { mmap_anonymous(std::ptr::null_mut(), whole, ProtFlags::empty(), MapFlags::PRIVATE)? };
    let into = offset as usize % page;
    let before = (into + page - found.addr() % page) % page;
    let end = (before + len).next_multiple_of(page_size());
    let start = found.wrapping_byte_add(before);
    free(found, before);
    free(found.wrapping_byte_add(end), whole.saturating_sub(end));
    Ok(start)
}

/// Gives addresses of a [`room`] back.
fn free(start: *mut c_void, len: usize) {
    if len > 0 {
        // SAFETY: the range belongs to a mapping of nothing that this module made and nobody else knows. A failure would
        // leave it taken, which harms nobody.
        let _ = unsafe { munmap(start, len) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: M1: the range is ours, and nobody borrows it any more. A failure would leave it mapped, which
            // harms nobody.
            let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        }
    }
}
