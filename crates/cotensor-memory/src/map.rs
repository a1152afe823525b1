//! One mapping, unmapped on drop.

use cotensor_core::{ALIGNMENT, Error, Result};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::num::NonZero;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

/// A mapping of a whole file. Invariant M1: `start .. start + len` is mapped, readable, for as long as this lives.
/// Invariant M2: it is writable exactly when `writable`, and then nobody else writes it.
pub(crate) struct Map {
    start: NonNull<u8>,
    len: usize,
    writable: bool,
}

// SAFETY: the mapping belongs to the process, not to a thread; reading needs a shared and writing an exclusive
// borrow of the `Map`, as for a `Vec`.
unsafe impl Send for Map {}
// SAFETY: as above; `&Map` only reads.
unsafe impl Sync for Map {}

impl Map {
    /// Maps the first `len` bytes of `fd`: shared and writable, or shared and read-only.
    pub(crate) fn new(fd: BorrowedFd<'_>, len: usize, writable: bool) -> Result<Self> {
        if len == 0 {
            let aligned = NonZero::new(ALIGNMENT).map_or(NonNull::dangling(), NonNull::without_provenance);
            return Ok(Self { start: aligned, len, writable });
        }
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that exists.
        let start = unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, fd, 0) };
        let start = start.map_err(|error| Error::io(format!("cannot map {len} bytes"), &error.into()))?;
        let start = NonNull::new(start.cast()).ok_or_else(|| Error::unsupported("the system mapped address zero"))?;
        Ok(Self { start, len, writable })
    }

    /// Replaces the writable mapping by a read-only one at the same address. Private, because the kernel counts a
    /// shared mapping of a writable descriptor as one that may write; it has the file's own pages all the same.
    pub(crate) fn into_read_only(mut self, fd: BorrowedFd<'_>) -> Result<Self> {
        if self.len > 0 {
            // SAFETY: M1: the range is this mapping's own, page-aligned as mmap gave it, and `self` by value proves that
            // nobody borrows it. MAP_FIXED replaces it in one step, so the address is never free for others.
            let done = unsafe {
                mmap(
                    self.start.as_ptr().cast::<c_void>(),
                    self.len,
                    ProtFlags::READ,
                    MapFlags::PRIVATE | MapFlags::FIXED,
                    fd,
                    0,
                )
            };
            done.map_err(|error| Error::io("cannot map read-only", &error.into()))?;
        }
        self.writable = false;
        Ok(self)
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
        // SAFETY: M1 and M2; the exclusive borrow of `self` excludes other references.
        self.writable.then(|| unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) })
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: M1: the range is ours, and nobody borrows it any more. A failure would leave it mapped, which
            // harms nobody.
            let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        }
    }
}
