//! Reads the resident pages of a process: their identities and contents. Writes nothing and faults in no page.

use super::page::{Content, PAGE_BYTES, first_word};
use super::process::Process;
use cotensor_core::{Error, Hasher, Result};
use cotensor_memory::process::MappedRange;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Number of page map entries per read.
const ENTRIES_PER_READ: usize = 4096;
/// Number of pages per read.
const PAGES_PER_READ: usize = 256;

// Bits of an entry of /proc/PID/pagemap (Documentation/admin-guide/mm/pagemap.rst).
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const FILE_OR_SHARED: u64 = 1 << 61;
const EXCLUSIVE: u64 = 1 << 56;
const FRAME_NUMBER: u64 = (1 << 55) - 1;

/// Byte counts of one process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    pub(super) resident_bytes: u64,
    pub(super) read_bytes: u64,
    pub(super) zero_bytes: u64,
    pub(super) swapped_bytes: u64,
    /// Resident bytes that could not be read.
    pub(super) unread_bytes: u64,
}

/// State shared by the scans of all processes.
#[derive(Default)]
pub(super) struct Known {
    /// Contents of pages that several processes can map. Each is read once.
    contents: HashMap<u64, Content>,
    /// Number of pages that only one process maps; identifies them.
    own: u64,
    /// Whether the kernel hid page frame numbers.
    pub(super) frame_numbers_hidden: bool,
}

/// A page of the scan: its physical page and the hash of its content.
pub(super) struct Page {
    pub(super) frame: u64,
    pub(super) content: u64,
}

/// Reads the pages of one process from /proc.
pub(super) struct PageReader {
    map: File,
    memory: File,
    sample: u32,
    frame_numbers: bool,
}

/// A resident page.
struct Resident {
    address: u64,
    /// The physical page; `None` if a fork may have left it shared: then it is identified by its content.
    frame: Option<u64>,
    /// Whether other processes can map the page.
    common: bool,
}

impl PageReader {
    /// # Errors
    /// `NotFound` when the process has ended, `Io` without permission.
    pub(super) fn open(process: &Process, sample: u32, frame_numbers: bool) -> Result<Self> {
        let open = |file: &str| {
            let path = process.path(file);
            File::open(&path).map_err(|error| Error::io("cannot open", &error).in_file(path))
        };
        Ok(Self { map: open("pagemap")?, memory: open("mem")?, sample, frame_numbers })
    }

    /// Passes every resident page of `range` that is not all zeros to `on_page`. `go_on` gets the number of bytes read
    /// since its last call, and returns false to stop. Returns whether the range was read completely.
    ///
    /// # Errors
    /// `Io` when the page map cannot be read because the process has ended.
    pub(super) fn visit(
        &self,
        range: &MappedRange,
        known: &mut Known,
        counted: &mut Counted,
        go_on: &mut dyn FnMut(u64) -> bool,
        on_page: &mut dyn FnMut(Page),
    ) -> Result<bool> {
        let mut entries = vec![0; ENTRIES_PER_READ * 8];
        let mut buffer = vec![0; PAGES_PER_READ * PAGE_BYTES];
        let page = PAGE_BYTES as u64;
        let mut address = range.start;
        while address < range.end {
            let count = usize::try_from((range.end - address) / page).unwrap_or(ENTRIES_PER_READ).min(ENTRIES_PER_READ);
            if count == 0 {
                break;
            }
            let entries = &mut entries[..count * 8];
            self.map
                .read_exact_at(entries, address / page * 8)
                .map_err(|error| Error::io("cannot read the page map", &error))?;
            let mut resident = Vec::new();
            for (index, entry) in entries.as_chunks::<8>().0.iter().enumerate() {
                let entry = u64::from_le_bytes(*entry);
                if entry & SWAPPED != 0 {
                    counted.swapped_bytes += page;
                } else if entry & PRESENT != 0 {
                    resident.push(self.identify(entry, address + index as u64 * page, range, known));
                }
            }
            counted.resident_bytes += resident.len() as u64 * page;
            let before = counted.read_bytes;
            self.read(&resident, known, counted, &mut buffer, on_page);
            address += count as u64 * page;
            if !go_on(counted.read_bytes - before) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Identifies the physical page of an entry: by its frame number, by file and offset, or as exclusive to one
    /// mapping.
    fn identify(&self, entry: u64, address: u64, range: &MappedRange, known: &mut Known) -> Resident {
        let number = entry & FRAME_NUMBER;
        let exclusive = entry & EXCLUSIVE != 0;
        let frame = if self.frame_numbers && number != 0 {
            Some(identity(By::FrameNumber, number))
        } else if entry & FILE_OR_SHARED != 0 && range.inode != 0 {
            known.frame_numbers_hidden = true;
            let mut hasher = Hasher::new("cotensor scan v1");
            hasher.number(range.device).number(range.inode).number(range.offset + (address - range.start));
            Some(identity(By::File, first_word(hasher.finish())))
        } else if exclusive {
            known.own += 1;
            Some(identity(By::Exclusive, known.own))
        } else {
            known.frame_numbers_hidden = true;
            None
        };
        Resident { address, frame, common: !exclusive || entry & FILE_OR_SHARED != 0 }
    }

    fn read(
        &self,
        resident: &[Resident],
        known: &mut Known,
        counted: &mut Counted,
        buffer: &mut [u8],
        on_page: &mut dyn FnMut(Page),
    ) {
        let page = PAGE_BYTES as u64;
        let mut report = |frame: Option<u64>, content: Content, counted: &mut Counted| match content {
            Content::Zero => counted.zero_bytes += page,
            Content::NotSampled => {}
            Content::Hash(hash) => {
                on_page(Page { frame: frame.unwrap_or_else(|| identity(By::Content, hash)), content: hash })
            }
        };
        let mut wanted = Vec::new();
        for found in resident {
            let content = found.frame.filter(|_| found.common).and_then(|frame| known.contents.get(&frame));
            match content {
                Some(&content) => report(found.frame, content, counted),
                None => wanted.push(found),
            }
        }
        // Adjacent pages are read together.
        for run in wanted.chunk_by(|a, b| a.address + page == b.address) {
            for run in run.chunks(PAGES_PER_READ) {
                let target = &mut buffer[..run.len() * PAGE_BYTES];
                // A read ends at the first page that was unmapped or is not readable.
                let read = self.memory.read_at(target, run[0].address).unwrap_or(0) / PAGE_BYTES;
                counted.read_bytes += (read * PAGE_BYTES) as u64;
                counted.unread_bytes += ((run.len() - read) * PAGE_BYTES) as u64;
                for (found, bytes) in run.iter().zip(target.as_chunks::<PAGE_BYTES>().0).take(read) {
                    let content = Content::of(bytes, self.sample);
                    if let Some(frame) = found.frame.filter(|_| found.common) {
                        known.contents.insert(frame, content);
                    }
                    report(found.frame, content, counted);
                }
            }
        }
    }
}

/// How a page is identified.
#[derive(Clone, Copy)]
enum By {
    FrameNumber,
    File,
    Exclusive,
    Content,
}

/// The identity of a page: equal in all processes that map it. The highest bits contain the method, so that identities
/// of different methods differ.
fn identity(by: By, number: u64) -> u64 {
    (by as u64) << 60 | number & ((1 << 60) - 1)
}
