//! One mapping of a file, unmapped on drop.

use super::count::Counted;
use super::huge_pages::huge_page_bytes;
use cotensor_core::{ALIGNMENT, Error, ErrorKind, Result, size};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use rustix::param::page_size;
use std::ffi::c_void;
use std::num::NonZero;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

/// The protection of a mapping, and whether its writes reach the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Reading. The mapping is private: the kernel counts a shared mapping of a writable descriptor as a writable one,
    /// and before Linux 6.7 refuses it for a write-sealed memfd. A private mapping shows the same pages.
    Read,
    /// Reading by a shared mapping of a descriptor that is open for reading only. Drivers that lock pages for reading get
    /// those of the file, instead of copies as from a private mapping.
    ReadShared,
    /// Reading and writing the file.
    Write,
    /// Reading the file, and writing to a private copy of each written page. Without a reservation of swap: else each
    /// reader would add the whole length to the committed memory of the system. Linux ignores that where
    /// `vm.overcommit_memory` is 2.
    CopyOnWrite,
}

impl Access {
    fn flags(self) -> (ProtFlags, MapFlags) {
        match self {
            Access::Read => (ProtFlags::READ, MapFlags::PRIVATE),
            Access::ReadShared => (ProtFlags::READ, MapFlags::SHARED),
            Access::Write => (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED),
            Access::CopyOnWrite => (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE),
        }
    }
}

/// Whether a forked child has a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnFork {
    /// `MADV_DOFORK`, the default of the kernel.
    Inherit,
    /// `MADV_DONTFORK`: a child cannot access the memory, nor keep it from being sealed.
    Exclude,
}

/// A mapping of a part of a file.
///
/// - **M1**: `start .. start + len` is mapped and readable while the `Mapping` lives.
/// - **M2**: the range is writable unless `access` is `Read` or `ReadShared`. This process then writes it only through
///   [`bytes_mut`](Self::bytes_mut). Exceptions are the mappings of a slab, which only the slab's segments access, the
///   windows of a slab, which only their parts access, and the mapping of a shared index, which only its atomics
///   access: nothing calls `bytes` or `bytes_mut` of these.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
    access: Access,
    _counted: Option<Counted>,
}

// SAFETY: a mapping belongs to the process and not to a thread. Reading borrows the `Mapping`, and writing borrows it
// exclusively, as for a `Vec`.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` only reads.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of `fd`.
    pub(crate) fn new(fd: BorrowedFd<'_>, len: usize, access: Access) -> Result<Self> {
        Self::with_offset(fd, 0, len, access)
    }

    /// Maps `len` bytes of `fd` from byte `offset` on, which is a multiple of the page size.
    pub(crate) fn with_offset(fd: BorrowedFd<'_>, offset: u64, len: usize, access: Access) -> Result<Self> {
        if len == 0 {
            let aligned = NonZero::new(ALIGNMENT).map_or(NonNull::dangling(), NonNull::without_provenance);
            return Ok(Self { start: aligned, len, access, _counted: None });
        }
        let counted = Counted::new()?;
        let (protection, flags) = access.flags();
        let map = |address: *mut c_void, flags| {
            // SAFETY: without MAP_FIXED, the kernel chooses an unused range. With MAP_FIXED, `address` is the start of
            // a range that `reserve_addresses` has just reserved with at least `len` bytes, and no other
            // code knows.
            unsafe { mmap(address, len, protection, flags, fd, offset) }
        };
        let start = match huge_page_bytes() {
            // After a failed MAP_FIXED the range may already belong to another mapping, so it is not unmapped.
            Some(page) if len >= page => {
                reserve_addresses(len, offset, page).and_then(|address| map(address, flags | MapFlags::FIXED))
            }
            _ => map(std::ptr::null_mut(), flags),
        };
        let start = start.map_err(|error| map_error(len, error))?;
        let start = NonNull::new(start.cast()).ok_or_else(|| Error::unsupported("the system mapped address zero"))?;
        Ok(Self { start, len, access, _counted: Some(counted) })
    }

    /// Replaces a mapping of the start of `fd` by a private one of its first `len` bytes, at the same address. Later
    /// writes of this process to this address do not reach the file.
    pub(crate) fn remap_private(mut self, fd: BorrowedFd<'_>, len: usize, access: Access) -> Result<Self> {
        debug_assert!(access != Access::Write);
        self.truncate(len);
        if self.len > 0 {
            let (protection, flags) = access.flags();
            let start = self.start.as_ptr().cast::<c_void>();
            // SAFETY: M1: the range is this mapping's own and page-aligned, and `self` by value excludes references to
            // it. MAP_FIXED replaces the mapping atomically, so no other mapping can take the address.
            let outcome = unsafe { mmap(start, self.len, protection, flags | MapFlags::FIXED, fd, 0) };
            if let Err(error) = outcome {
                // The kernel may have unmapped the range, and another mapping may have it by now: it is not unmapped
                // again.
                let len = std::mem::take(&mut self.len);
                return Err(map_error(len, error));
            }
        }
        self.access = access;
        Ok(self)
    }

    /// Unmaps the pages beyond the first `len` bytes.
    fn truncate(&mut self, len: usize) {
        let (kept, mapped) = (len.next_multiple_of(page_size()), self.len);
        if kept < mapped {
            // SAFETY: M1: `kept .. mapped` is the end of this mapping and starts at a page. `&mut self` excludes
            // references to it. A failure leaves the pages mapped, which is harmless.
            let _ = unsafe { munmap(self.start.as_ptr().add(kept).cast(), mapped - kept) };
        }
        self.len = len.min(mapped);
    }

    /// Faults in every page of a writable mapping (`MADV_POPULATE_WRITE`), on one thread: with several, the threads
    /// wait for each other's page tables. Linux before 5.14 ignores the request.
    pub(crate) fn prefault(&self) -> Result<()> {
        if self.len == 0 {
            return Ok(());
        }
        // SAFETY: M1: the range is this mapping's own, and `&self` keeps it. The bytes do not change.
        match unsafe { madvise(self.start.as_ptr().cast(), self.len, Advice::LinuxPopulateWrite) } {
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(error) => Err(Error::io(format!("cannot back {}", size(self.len as u64)), &error.into())),
        }
    }

    /// Sets what a later `fork` does with the mapping.
    pub(crate) fn set_on_fork(&self, on_fork: OnFork) -> Result<()> {
        if self.len == 0 {
            return Ok(());
        }
        let advice = match on_fork {
            OnFork::Inherit => Advice::LinuxDoFork,
            OnFork::Exclude => Advice::LinuxDontFork,
        };
        // SAFETY: M1: the range is this mapping's own, and `&self` keeps it. This process's view does not change.
        unsafe { madvise(self.start.as_ptr().cast(), self.len, advice) }
            .map_err(|error| Error::io("cannot set whether a child inherits memory", &error.into()))
    }

    /// Backs `range` of a new writable mapping with huge pages (`MADV_COLLAPSE`), as many as the kernel has. `page` is
    /// the size of one, and `range` a multiple of it. The bytes do not change. Returns whether all of the range has huge pages.
    pub(crate) fn collapse(&self, range: Range<usize>, page: usize) -> bool {
        debug_assert!(range.end <= self.len && self.access == Access::Write);
        for start in range.clone().step_by(page) {
            // SAFETY: M1: the page is inside the mapping, which `&self` keeps. MADV_COLLAPSE needs one present page in
            // each huge page. Without memory this call fails, where an access would raise SIGBUS.
            let populated =
                unsafe { madvise(self.start.as_ptr().add(start).cast(), page_size(), Advice::LinuxPopulateRead) };
            if populated.is_err() {
                return false;
            }
        }
        // SAFETY: M1: the range is inside the mapping, which `&self` keeps. A program cannot observe which pages hold
        // its bytes.
        let collapsed =
            unsafe { libc::madvise(self.start.as_ptr().add(range.start).cast(), range.len(), libc::MADV_COLLAPSE) };
        collapsed == 0
    }

    /// Drops the private copies of the whole pages `range`, which show the file again (`MADV_DONTNEED`). No code reads
    /// or writes these pages meanwhile.
    pub(super) fn drop_copies(&self, range: Range<usize>) -> Result<(), Errno> {
        debug_assert!(range.end <= self.len.next_multiple_of(page_size()) && self.access == Access::CopyOnWrite);
        if range.is_empty() {
            return Ok(());
        }
        // SAFETY: M1: the range is inside this mapping, which `&self` keeps. No reference to these bytes exists: their
        // last reader is being dropped. A failure leaves the copies.
        unsafe { madvise(self.start.as_ptr().add(range.start).cast(), range.len(), Advice::LinuxDontNeed) }
    }

    /// The first address.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// The length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: M1, and the borrow of `self` keeps the mapping. The bytes do not change meanwhile: a file that is
        // mapped for reading is sealed, or is Cotensor's own and never truncated; a writable mapping has no
        // other writer (M2).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The bytes for writing; `None` for a mapping that only reads.
    pub(crate) fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        let writable = matches!(self.access, Access::Write | Access::CopyOnWrite);
        // SAFETY: M1 and M2; the exclusive borrow of `self` keeps the mapping and excludes other references.
        writable.then(|| unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: M1: the range is this mapping's own, and `&mut self` excludes references to it. A failure leaves
            // it mapped, which is harmless.
            let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        }
    }
}

/// The error of a mapping of `len` bytes. The kernel has one error for several limits.
fn map_error(len: usize, error: Errno) -> Error {
    let what = format!("cannot map {}", size(len as u64));
    match error {
        Errno::NOMEM => {
            let limits =
                "address space (`ulimit -v`), mappings (vm.max_map_count) or committed memory (vm.overcommit_memory)";
            let message = format!(
                "{what}: this process or the system has reached a limit of {limits}: release tensors or raise it"
            );
            Error::new(ErrorKind::OverBudget, message)
        }
        error => Error::io(what, &error.into()),
    }
}

/// Reserves addresses for `len` bytes of a file from byte `offset` on, such that huge pages of the file can be mapped
/// as huge pages of `page` bytes. An inaccessible mapping holds the reservation.
fn reserve_addresses(len: usize, offset: u64, page: usize) -> Result<*mut c_void, Errno> {
    let whole = len.checked_add(page).ok_or(Errno::NOMEM)?;
    // SAFETY: without MAP_FIXED, the kernel chooses an unused range.
    let found = unsafe { mmap_anonymous(std::ptr::null_mut(), whole, ProtFlags::empty(), MapFlags::PRIVATE)? };
    // The start and `offset` have the same remainder modulo `page`.
    let remainder = offset as usize % page;
    let before = (remainder + page - found.addr() % page) % page;
    let end = (before + len).next_multiple_of(page_size());
    release_addresses(found, before);
    release_addresses(found.wrapping_byte_add(end), whole.saturating_sub(end));
    Ok(found.wrapping_byte_add(before))
}

/// Releases a part of what [`reserve_addresses`] reserved.
fn release_addresses(start: *mut c_void, len: usize) {
    if len > 0 {
        // SAFETY: the range is part of an inaccessible mapping of this module, to which no reference exists. A failure
        // leaves it reserved, which is harmless.
        let _ = unsafe { munmap(start, len) };
    }
}
