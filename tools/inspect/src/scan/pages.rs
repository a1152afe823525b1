//! The resident pages of a process: which they are, and what is in them. Nothing is written, and no page is brought in.

use super::PAGE_BYTES;
use super::process::Process;
use cotensor_core::{ContentHash, Error, Hasher, Result};
use cotensor_memory::process::MappedRange;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Pages that are looked up in one go.
const LOOKED_UP: usize = 4096;
/// Pages that are read in one go.
const READ: usize = 256;

// Bits of an entry of /proc/PID/pagemap (Documentation/admin-guide/mm/pagemap.rst).
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const FILE_OR_SHARED: u64 = 1 << 61;
const EXCLUSIVE: u64 = 1 << 56;
const FRAME_NUMBER: u64 = (1 << 55) - 1;

/// What was found in a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Zeros, which cost nothing to make again.
    Zero,
    /// A sample that does not take in this content.
    PassedOver,
    /// Anything else, by its hash.
    Hash(u64),
}

impl Content {
    /// Looks at a page. A sample takes in one content of `sample`: the choice is the content's, so that copies are taken
    /// or left together.
    pub(super) fn of(page: &[u8], sample: u32) -> Self {
        if page.iter().all(|&byte| byte == 0) {
            return Self::Zero;
        }
        if sample > 1 && !mix(page).is_multiple_of(u64::from(sample)) {
            return Self::PassedOver;
        }
        Self::Hash(first_word(ContentHash::of(page)))
    }
}

fn first_word(hash: ContentHash) -> u64 {
    hash.as_bytes().first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
}

/// A number from a few words of a page, much cheaper than its hash.
fn mix(page: &[u8]) -> u64 {
    let words = page.chunks_exact(PAGE_BYTES / 16).filter_map(<[u8]>::first_chunk);
    let mixed = words.fold(0u64, |mixed, word| {
        (mixed.rotate_left(23) ^ u64::from_le_bytes(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    });
    mixed ^ (mixed >> 32)
}

/// What one process has resident.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    pub(super) resident_bytes: u64,
    pub(super) read_bytes: u64,
    pub(super) zero_bytes: u64,
    pub(super) swapped_bytes: u64,
    /// Resident bytes that could not be read.
    pub(super) unread_bytes: u64,
}

/// What is known across processes.
#[derive(Default)]
pub(super) struct Known {
    /// Contents of pages that several mappings can have: each is read once.
    contents: HashMap<u64, Content>,
    /// Numbers pages that nobody else has.
    own: u64,
    /// Whether page frame numbers were hidden.
    pub(super) hidden: bool,
}

/// A page that is to be told.
pub(super) struct Page {
    pub(super) frame: u64,
    pub(super) content: u64,
}

/// The files of one process through which its pages are seen.
pub(super) struct Pages {
    map: File,
    memory: File,
    sample: u32,
    frame_numbers: bool,
}

/// A resident page and, where that is known, which it is.
struct Resident {
    address: u64,
    /// `None` for one that a fork may have left shared: it is known by its content.
    frame: Option<u64>,
    /// Whether others may have it too.
    common: bool,
}

impl Pages {
    /// # Errors
    /// `NotFound` when the process has ended, `Io` when it may not be looked at.
    pub(super) fn open(process: &Process, sample: u32, frame_numbers: bool) -> Result<Self> {
        let open = |file: &str| {
            let path = process.path(file);
            File::open(&path).map_err(|error| Error::io("cannot open", &error).in_file(path))
        };
        Ok(Self { map: open("pagemap")?, memory: open("mem")?, sample, frame_numbers })
    }

    /// Tells every resident page of `range` that is not all zeros, until `go_on` says that it is enough: it is asked with
    /// the bytes that were read since it was last asked. Whether the range came to its end.
    ///
    /// # Errors
    /// `Io` when pages cannot be looked up any more: the process has ended.
    pub(super) fn visit(
        &self,
        range: &MappedRange,
        known: &mut Known,
        counted: &mut Counted,
        go_on: &mut dyn FnMut(u64) -> bool,
        tell: &mut dyn FnMut(Page),
    ) -> Result<bool> {
        let mut entries = vec![0; LOOKED_UP * 8];
        let mut buffer = vec![0; READ * PAGE_BYTES];
        let page = PAGE_BYTES as u64;
        let mut address = range.start;
        while address < range.end {
            let count = usize::try_from((range.end - address) / page).unwrap_or(LOOKED_UP).min(LOOKED_UP);
            if count == 0 {
                break;
            }
            let entries = &mut entries[..count * 8];
            self.map
                .read_exact_at(entries, address / page * 8)
                .map_err(|error| Error::io("its pages cannot be looked up", &error))?;
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
            self.read(&resident, known, counted, &mut buffer, tell);
            address += count as u64 * page;
            if !go_on(counted.read_bytes - before) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Which physical page an entry stands for: by its frame number, by file and offset, or by nobody else having it.
    fn identify(&self, entry: u64, address: u64, range: &MappedRange, known: &mut Known) -> Resident {
        let number = entry & FRAME_NUMBER;
        let exclusive = entry & EXCLUSIVE != 0;
        let frame = if self.frame_numbers && number != 0 {
            Some(named(By::FrameNumber, number))
        } else if entry & FILE_OR_SHARED != 0 && range.inode != 0 {
            known.hidden = true;
            let mut hasher = Hasher::new("cotensor scan v1");
            hasher.number(range.device).number(range.inode).number(range.offset + (address - range.start));
            Some(named(By::File, first_word(hasher.finish())))
        } else if exclusive {
            known.own += 1;
            Some(named(By::Nobody, known.own))
        } else {
            known.hidden = true;
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
        tell: &mut dyn FnMut(Page),
    ) {
        let page = PAGE_BYTES as u64;
        let mut tell = |frame: Option<u64>, content: Content, counted: &mut Counted| match content {
            Content::Zero => counted.zero_bytes += page,
            Content::PassedOver => {}
            Content::Hash(hash) => {
                tell(Page { frame: frame.unwrap_or_else(|| named(By::Content, hash)), content: hash })
            }
        };
        let mut wanted = Vec::new();
        for found in resident {
            let content = found.frame.filter(|_| found.common).and_then(|frame| known.contents.get(&frame));
            match content {
                Some(&content) => tell(found.frame, content, counted),
                None => wanted.push(found),
            }
        }
        // Neighbours are read together.
        for run in wanted.chunk_by(|a, b| a.address + page == b.address) {
            for run in run.chunks(READ) {
                let target = &mut buffer[..run.len() * PAGE_BYTES];
                // A page that cannot be read, because it went or because no process may read it, ends what is read.
                let read = self.memory.read_at(target, run[0].address).unwrap_or(0) / PAGE_BYTES;
                counted.read_bytes += (read * PAGE_BYTES) as u64;
                counted.unread_bytes += ((run.len() - read) * PAGE_BYTES) as u64;
                for (found, bytes) in run.iter().zip(target.as_chunks::<PAGE_BYTES>().0).take(read) {
                    let content = Content::of(bytes, self.sample);
                    if let Some(frame) = found.frame.filter(|_| found.common) {
                        known.contents.insert(frame, content);
                    }
                    tell(found.frame, content, counted);
                }
            }
        }
    }
}

/// What tells pages apart.
#[derive(Clone, Copy)]
enum By {
    FrameNumber,
    File,
    Nobody,
    Content,
}

/// A number for a page that is the same for all who have it; what it is known by cannot be mistaken for another.
fn named(by: By, number: u64) -> u64 {
    (by as u64) << 60 | number & ((1 << 60) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_take_copies_together_and_about_as_many_as_asked() {
        let pages: Vec<Vec<u8>> = (0..4000u32)
            .map(|number| {
                (0..PAGE_BYTES / 4)
                    .flat_map(|word| (number ^ word as u32).wrapping_mul(2_654_435_761).to_le_bytes())
                    .collect()
            })
            .collect();
        let taken = pages.iter().filter(|page| matches!(Content::of(page, 8), Content::Hash(_))).count();
        assert!((300..700).contains(&taken), "{taken} of 4000");
        for page in &pages[..100] {
            assert_eq!(Content::of(page, 8), Content::of(&page.clone(), 8));
            assert_ne!(Content::of(page, 1), Content::PassedOver);
        }
        assert_eq!(Content::of(&[0; PAGE_BYTES], 1), Content::Zero);
        assert_ne!(Content::of(&pages[0], 1), Content::of(&pages[1], 1));
    }
}
