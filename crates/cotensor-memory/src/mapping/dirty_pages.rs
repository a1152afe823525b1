//! Which pages of a private mapping are this process's own.

use cotensor_core::{Error, Result};
use rustix::param::page_size;
use std::cell::RefCell;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// Bytes of the pages of `start .. start + len` that were written, in whole pages. `start` is a page's.
pub(crate) fn dirty_bytes(start: usize, len: usize) -> Result<u64> {
    if len == 0 {
        return Ok(0);
    }
    with_pagemap(|map| look(map, start, len)).map_err(io)
}

fn look(map: &File, start: usize, len: usize) -> std::io::Result<u64> {
    match scan(map, start, len.next_multiple_of(page_size())) {
        // Kernels before 6.7.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL)) => read(map, start, len),
        outcome => outcome,
    }
}

/// Gives `look` this process's pages. Each thread opens them once, which takes longer than looking: no lock, which a forked
/// child could inherit locked; and the file stays that of the process that opened it.
fn with_pagemap<T>(look: impl Fn(&File) -> std::io::Result<T>) -> std::io::Result<T> {
    thread_local! {
        static OPEN: RefCell<Option<(u32, File)>> = const { RefCell::new(None) };
    }
    let open = || File::open("/proc/self/pagemap");
    let kept = OPEN.try_with(|kept| {
        let (mut kept, process) = (kept.borrow_mut(), std::process::id());
        if kept.as_ref().is_none_or(|(owner, _)| *owner != process) {
            *kept = Some((process, open()?));
        }
        kept.as_ref().map(|(_, map)| look(map)).transpose()
    });
    match kept {
        Ok(Ok(Some(found))) => Ok(found),
        Ok(Err(error)) => Err(error),
        // The thread is about to end.
        Ok(Ok(None)) | Err(_) => look(&open()?),
    }
}

fn io(error: std::io::Error) -> Error {
    Error::io("cannot look at the pages", &error).in_file("/proc/self/pagemap")
}

/// `struct pm_scan_arg` of linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct Scan {
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
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// `PAGEMAP_SCAN`: `_IOWR('f', 16, struct pm_scan_arg)`.
const SCAN: u64 = 0xc060_6610;
const IS_FILE: u64 = 1 << 2;
const IS_PRESENT: u64 = 1 << 3;
const IS_SWAPPED: u64 = 1 << 4;
const IS_ZERO: u64 = 1 << 5;
/// Answers at a time.
const REGIONS: usize = 128;

/// Asks the kernel for what it has of its own, which skips what is not there and huge pages at once.
fn scan(map: &File, start: usize, len: usize) -> std::io::Result<u64> {
    let end = (start + len) as u64;
    let (mut at, mut bytes) = (start as u64, 0);
    let mut regions = [Region::default(); REGIONS];
    while at < end {
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            start: at,
            end,
            vec: regions.as_mut_ptr() as u64,
            vec_len: REGIONS as u64,
            category_inverted: IS_FILE | IS_ZERO,
            category_mask: IS_FILE | IS_ZERO,
            category_anyof_mask: IS_PRESENT | IS_SWAPPED,
            return_mask: IS_PRESENT,
            ..Scan::default()
        };
        // SAFETY: the argument has the size that it says and lives through the call, and so do the regions that it
        // points to, of which the kernel fills no more than `vec_len`.
        let found = unsafe { libc::ioctl(map.as_raw_fd(), SCAN, &mut scan) };
        let found = usize::try_from(found).map_err(|_| std::io::Error::last_os_error())?;
        bytes += regions.iter().take(found).map(|region| region.end - region.start).sum::<u64>();
        if scan.walk_end <= at {
            break;
        }
        at = scan.walk_end;
    }
    Ok(bytes)
}

/// The same, page by page.
fn read(map: &File, start: usize, len: usize) -> std::io::Result<u64> {
    const PRESENT: u64 = 1 << 63;
    const SWAPPED: u64 = 1 << 62;
    const FILE: u64 = 1 << 61;
    let (page, mut written) = (page_size(), 0);
    let mut entries = [0u8; 8 * 4096];
    let pages = len.div_ceil(page);
    let mut done = 0;
    while done < pages {
        let part = &mut entries[..8 * (pages - done).min(4096)];
        map.read_exact_at(part, 8 * (start / page + done) as u64)?;
        for entry in part.as_chunks::<8>().0 {
            let entry = u64::from_ne_bytes(*entry);
            written += u64::from(entry & (PRESENT | SWAPPED) != 0 && entry & FILE == 0);
        }
        done += part.len() / 8;
    }
    Ok(written * page as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemfdMut, PrivateMapping};
    use cotensor_core::SegmentMut;

    #[test]
    fn both_ways_count_the_same() {
        let page = page_size();
        let mut memfd = MemfdMut::create(1000 * page).unwrap();
        memfd.bytes_mut().unwrap().fill(1);
        let mut copy = PrivateMapping::of(&memfd.seal().unwrap(), 0..1000 * page).unwrap();
        let map = File::open("/proc/self/pagemap").unwrap();
        let start = copy.bytes().as_ptr() as usize;
        for (written, every) in [(0, 0), (500, 2), (750, 4), (1000, 1)] {
            if every > 0 {
                let bytes = copy.bytes_mut();
                (0..1000).step_by(2).for_each(|page_of| bytes[page_of * page] = 2);
                (0..1000).step_by(every).for_each(|page_of| bytes[page_of * page + 1] = 3);
                (0..1000).skip(1).step_by(4).filter(|_| every == 4).for_each(|page_of| bytes[page_of * page] = 4);
            }
            assert_eq!(read(&map, start, 1000 * page).unwrap(), (written * page) as u64);
            assert_eq!(dirty_bytes(start, 1000 * page).unwrap(), (written * page) as u64);
        }
    }
}
