//! A table of numbers that one process writes and others read, so that they see what changed without asking.

use super::memfd::{Guarantee, allocate, check_sealed, seal};
use crate::mapping::{Access, Mapping};
use cotensor_core::{Error, Result};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};

const WORD_BYTES: usize = size_of::<u64>();
/// Before the slots: whether the table still means anything.
const HEADER_WORDS: usize = 1;
const VALID: u64 = 0;
const ENDED: u64 = 1;

/// The most slots that a table can have: 8 MiB of them.
pub const SHARED_INDEX_SLOTS_MAX: u32 = 1 << 20;

/// The writing end: a memfd of one word per slot. All slots are zero at first.
///
/// Whoever has a descriptor can map it for writing until [`seal`](SharedIndex::seal), and only read it afterwards.
pub struct SharedIndex {
    words: Words,
    fd: OwnedFd,
}

/// The reading end.
pub struct SharedIndexReader {
    words: Words,
}

/// Invariant I1: the mapping starts at a page and has `HEADER_WORDS + slots` words, which nobody but the atomics below
/// touches: nothing ever calls `bytes` or `bytes_mut` of it.
struct Words {
    map: Mapping,
    slots: u32,
}

impl Words {
    fn map(fd: BorrowedFd<'_>, slots: u32, access: Access) -> Result<Self> {
        Ok(Self { map: Mapping::new(fd, bytes_of(slots)?, access)?, slots })
    }

    /// The word of `slot`, if there is one.
    fn slot(&self, slot: u32) -> Option<&AtomicU64> {
        (slot < self.slots).then(|| self.word(HEADER_WORDS + slot as usize))
    }

    fn state(&self) -> &AtomicU64 {
        self.word(0)
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < HEADER_WORDS + self.slots as usize, "a word beyond the table");
        // SAFETY: I1: inside the mapping, which `self` keeps, and aligned, because a page's start is; other processes
        // access it by atomics too. A reader's mapping is read-only: its words are only ever loaded, relaxed, which
        // the language allows on read-only memory for words of this size.
        unsafe { AtomicU64::from_ptr(self.map.start().as_ptr().cast::<u64>().add(index)) }
    }
}

fn bytes_of(slots: u32) -> Result<usize> {
    if slots == 0 || slots > SHARED_INDEX_SLOTS_MAX {
        return Err(
            Error::invalid(format!("an index of {slots} slots; 1 to {SHARED_INDEX_SLOTS_MAX}")).in_field("slots")
        );
    }
    Ok((HEADER_WORDS + slots as usize) * WORD_BYTES)
}

impl SharedIndex {
    /// A new table.
    ///
    /// # Errors
    /// `Invalid` for no slots or too many, `Io` when the system has no more memory.
    pub fn create(slots: u32) -> Result<Self> {
        let (fd, _) = allocate(bytes_of(slots)?, true)?;
        Ok(Self { words: Words::map(fd.as_fd(), slots, Access::Write)?, fd })
    }

    /// A second writer of a table that is not sealed yet.
    ///
    /// # Errors
    /// `Invalid` for a descriptor of another length, `Io` when it cannot be mapped for writing: it is sealed.
    pub fn open(fd: OwnedFd, slots: u32) -> Result<Self> {
        let bytes = bytes_of(slots)?;
        let found = rustix::fs::fstat(&fd).map_err(|error| Error::io("looking at an index", &error.into()))?.st_size;
        if u64::try_from(found).ok() != Some(bytes as u64) {
            return Err(Error::invalid(format!("an index of {found} bytes for {slots} slots")).in_field("slots"));
        }
        Ok(Self { words: Words::map(fd.as_fd(), slots, Access::Write)?, fd })
    }

    /// From now on nobody can map it for writing. Who has, can write on.
    ///
    /// # Errors
    /// `Io` when the system refuses, as it does for one that is sealed.
    pub fn seal(&self) -> Result<()> {
        seal(&self.fd, Guarantee::ProducerOnly)
    }

    /// How many slots it has.
    pub fn slots(&self) -> u32 {
        self.words.slots
    }

    /// Sets a slot. What was written before, to whatever memory, is seen by who reads this value.
    ///
    /// # Panics
    /// For a slot that is not there.
    pub fn set(&self, slot: u32, value: u64) {
        let word = self.words.slot(slot).expect("the writer knows its slots");
        word.store(value, Ordering::Release);
    }

    /// From now on readers find nothing in it.
    pub fn invalidate(&self) {
        self.words.state().store(ENDED, Ordering::Release);
    }

    /// The descriptor for readers.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl SharedIndexReader {
    /// Maps a table that another process writes.
    ///
    /// # Errors
    /// `Refused` when others than who writes it already could write it, or resize it; `Io`.
    pub fn open(fd: &OwnedFd, slots: u32) -> Result<Self> {
        check_sealed(fd, bytes_of(slots)?, Guarantee::ProducerOnly)?;
        Ok(Self { words: Words::map(fd.as_fd(), slots, Access::Read)? })
    }

    /// The value of a slot; `None` once the table has [ended](SharedIndex::invalidate), and for a slot that is not there.
    pub fn get(&self, slot: u32) -> Option<u64> {
        let value = self.words.slot(slot)?.load(Ordering::Relaxed);
        let state = self.words.state().load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        (state == VALID).then_some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_core::ErrorKind;
    use std::sync::Arc;

    fn copy(index: &SharedIndex) -> OwnedFd {
        index.fd().try_clone_to_owned().unwrap()
    }

    #[test]
    fn readers_see_what_writers_set_until_the_end() {
        let index = SharedIndex::create(1000).unwrap();
        let second = SharedIndex::open(copy(&index), 1000).unwrap();
        assert_eq!(
            SharedIndexReader::open(&copy(&index), 1000).err().unwrap().kind(),
            ErrorKind::Refused,
            "not sealed"
        );
        index.seal().unwrap();
        let reader = SharedIndexReader::open(&copy(&index), 1000).unwrap();
        assert_eq!((reader.get(0), reader.get(999), reader.get(1000)), (Some(0), Some(0), None));
        index.set(0, 7);
        second.set(999, u64::MAX);
        assert_eq!((reader.get(0), reader.get(1), reader.get(999)), (Some(7), Some(0), Some(u64::MAX)));
        // Whoever mapped it before the seal ends it, even when the one who wrote it is gone.
        drop(index);
        second.invalidate();
        assert_eq!(reader.get(0), None);
    }

    #[test]
    fn a_sealed_one_takes_no_writer_and_sizes_are_checked() {
        let index = SharedIndex::create(64).unwrap();
        assert!(SharedIndex::open(copy(&index), 65).is_err());
        index.seal().unwrap();
        assert_eq!(SharedIndex::open(copy(&index), 64).err().unwrap().kind(), ErrorKind::Io);
        assert!(SharedIndexReader::open(&copy(&index), 65).is_err());
        assert!(SharedIndex::create(0).is_err() && SharedIndex::create(SHARED_INDEX_SLOTS_MAX + 1).is_err());
    }

    #[test]
    fn what_was_written_before_a_value_is_seen_with_it() {
        let index = SharedIndex::create(2).unwrap();
        index.seal().unwrap();
        let reader = SharedIndexReader::open(&copy(&index), 2).unwrap();
        let data = Arc::new(AtomicU64::new(0));
        std::thread::scope(|scope| {
            let seen = Arc::clone(&data);
            scope.spawn(move || {
                for value in 1..=10_000 {
                    data.store(value, Ordering::Relaxed);
                    index.set(1, value);
                }
            });
            let mut last = 0;
            while last < 10_000 {
                let value = reader.get(1).unwrap();
                assert!(value >= last && seen.load(Ordering::Relaxed) >= value);
                last = value;
            }
        });
    }
}
