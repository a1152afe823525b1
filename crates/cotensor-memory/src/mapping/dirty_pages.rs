//! Dirty pages of a private mapping: those that this process wrote, of which the kernel made private copies.

use cotensor_core::{Error, Result};
use rustix::param::page_size;
use std::cell::RefCell;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// The size, in bytes, of the dirty pages of the private mapping at `start .. start + len`. `start` is page-aligned.
///
/// # Errors
/// `Io` when `/proc/self/pagemap` cannot be read.
pub(crate) fn dirty_bytes(start: usize, len: usize) -> Result<u64> {
    if len == 0 {
        return Ok(0);
    }
    let dirty = with_pagemap(|pagemap| count(pagemap, start, len));
    dirty.map_err(|error| Error::io("cannot read the page table", &error).in_file("/proc/self/pagemap"))
}

fn count(pagemap: &File, start: usize, len: usize) -> std::io::Result<u64> {
    match scan_ranges(pagemap, start, len.next_multiple_of(page_size())) {
        // Linux before 6.7 has no PAGEMAP_SCAN. Emulators of system calls, such as qemu's, answer ENOSYS.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL | libc::ENOSYS)) => {
            read_entries(pagemap, start, len)
        }
        outcome => outcome,
    }
}

/// Calls `read` with this process's pagemap. Opening the file takes longer than reading it, so each thread keeps it
/// open. A thread-local needs no lock, which a forked child could inherit locked. The owner's process id is kept as
/// well, because the file shows the pages of the process that opened it.
fn with_pagemap<T>(read: impl Fn(&File) -> std::io::Result<T>) -> std::io::Result<T> {
    thread_local! {
        static PAGEMAP: RefCell<Option<(u32, File)>> = const { RefCell::new(None) };
    }
    let open = || File::open("/proc/self/pagemap");
    let outcome = PAGEMAP.try_with(|pagemap| {
        let (mut pagemap, pid) = (pagemap.borrow_mut(), std::process::id());
        if pagemap.as_ref().is_none_or(|(owner, _)| *owner != pid) {
            *pagemap = Some((pid, open()?));
        }
        pagemap.as_ref().map(|(_, file)| read(file)).transpose()
    });
    match outcome {
        Ok(Ok(Some(found))) => Ok(found),
        Ok(Err(error)) => Err(error),
        // The thread is ending and its thread-locals are destroyed.
        Ok(Ok(None)) | Err(_) => read(&open()?),
    }
}

/// `struct pm_scan_arg` of linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct PmScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region` of linux/fs.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

/// `PAGEMAP_SCAN`: `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: u64 = 0xc060_6610;
const PAGE_IS_FILE: u64 = 1 << 2;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;
const PAGE_IS_PFNZERO: u64 = 1 << 5;
/// Regions that one call returns.
const REGIONS_MAX: usize = 128;

/// Counts present or swapped pages that belong neither to the file nor to the zero page. The kernel skips absent ranges
/// and whole huge pages in one step.
fn scan_ranges(pagemap: &File, start: usize, len: usize) -> std::io::Result<u64> {
    let end = (start + len) as u64;
    let (mut at, mut bytes) = (start as u64, 0);
    let mut regions = [PageRegion::default(); REGIONS_MAX];
    while at < end {
        let mut scan = PmScanArg {
            size: size_of::<PmScanArg>() as u64,
            start: at,
            end,
            vec: regions.as_mut_ptr() as u64,
            vec_len: REGIONS_MAX as u64,
            category_inverted: PAGE_IS_FILE | PAGE_IS_PFNZERO,
            category_mask: PAGE_IS_FILE | PAGE_IS_PFNZERO,
            category_anyof_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
            return_mask: PAGE_IS_PRESENT,
            ..PmScanArg::default()
        };
        // SAFETY: `scan` and `regions` are borrowed until after the call. `size` is the size of `scan`, and the kernel
        // fills at most `vec_len` entries of `regions`, which is its length. The scanned pages are only
        // inspected.
        let found = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &mut scan) };
        let found = usize::try_from(found).map_err(|_| std::io::Error::last_os_error())?;
        bytes += regions.iter().take(found).map(|region| region.end - region.start).sum::<u64>();
        if scan.walk_end <= at {
            break;
        }
        at = scan.walk_end;
    }
    Ok(bytes)
}

/// The same count from the 64-bit entry of each page.
fn read_entries(pagemap: &File, start: usize, len: usize) -> std::io::Result<u64> {
    const PRESENT: u64 = 1 << 63;
    const SWAPPED: u64 = 1 << 62;
    const FILE: u64 = 1 << 61;
    let (page, mut dirty) = (page_size(), 0);
    let mut entries = [0u8; 8 * 4096];
    let pages = len.div_ceil(page);
    let mut done = 0;
    while done < pages {
        let part = &mut entries[..8 * (pages - done).min(4096)];
        pagemap.read_exact_at(part, 8 * (start / page + done) as u64)?;
        for entry in part.as_chunks::<8>().0 {
            let entry = u64::from_ne_bytes(*entry);
            dirty += u64::from(entry & (PRESENT | SWAPPED) != 0 && entry & FILE == 0);
        }
        done += part.len() / 8;
    }
    Ok(dirty * page as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemfdMut, PrivateMapping};
    use cotensor_core::SegmentMut;

    #[test]
    fn scan_and_entries_count_the_same_dirty_pages() {
        let page = page_size();
        let mut memfd = MemfdMut::create(1000 * page).unwrap();
        memfd.bytes_mut().unwrap().fill(1);
        let mut copy = PrivateMapping::of(&memfd.seal().unwrap(), 0..1000 * page).unwrap();
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        let start = copy.bytes().as_ptr() as usize;
        for (dirty, every) in [(0, 0), (500, 2), (750, 4), (1000, 1)] {
            if every > 0 {
                let bytes = copy.bytes_mut();
                (0..1000).step_by(2).for_each(|page_of| bytes[page_of * page] = 2);
                (0..1000).step_by(every).for_each(|page_of| bytes[page_of * page + 1] = 3);
                (0..1000).skip(1).step_by(4).filter(|_| every == 4).for_each(|page_of| bytes[page_of * page] = 4);
            }
            assert_eq!(read_entries(&pagemap, start, 1000 * page).unwrap(), (dirty * page) as u64);
            assert_eq!(dirty_bytes(start, 1000 * page).unwrap(), (dirty * page) as u64);
        }
    }
}
