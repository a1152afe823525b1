//! A table of words in shared memory that one process writes and others read without a request.

use super::memfd::{Guarantee, allocate, check_sealed, seal};
use super::shared_words::{SharedWords, WORD_BYTES};
use crate::mapping::{Access, OnFork};
use crate::process::reopen_to_read;
use cotensor_core::{Error, Result};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

/// The header holds [`VALID`] or [`ENDED`].
const HEADER_WORDS: usize = 1;
const VALID: u64 = 0;
const ENDED: u64 = 1;

/// The most slots of a table: 8 MiB.
pub const SHARED_INDEX_SLOTS_MAX: u32 = 1 << 20;

/// The writer's side: a memfd with one word for each slot, initially zero.
///
/// A process with a descriptor can map the table for writing before [`seal`](Self::seal), and only for reading after
/// it.
pub struct SharedIndex {
    words: Words,
    fd: OwnedFd,
}

/// The reader's side.
pub struct SharedIndexReader {
    words: Words,
    is_shared: bool,
}

struct Words {
    all: SharedWords,
    slots: u32,
}

impl Words {
    fn map(fd: BorrowedFd<'_>, slots: u32, access: Access) -> Result<Self> {
        Ok(Self { all: SharedWords::map(fd, bytes_of(slots)? / WORD_BYTES, access)?, slots })
    }

    /// The word of `slot`, if there is one.
    fn slot(&self, slot: u32) -> Option<&AtomicU64> {
        (slot < self.slots).then(|| self.all.word(HEADER_WORDS + slot as usize))
    }

    fn state(&self) -> &AtomicU64 {
        self.all.word(0)
    }
}

fn bytes_of(slots: u32) -> Result<usize> {
    if slots == 0 || slots > SHARED_INDEX_SLOTS_MAX {
        return Err(Error::invalid(format!("an index of {slots} slots; 1 to {SHARED_INDEX_SLOTS_MAX} are possible"))
            .in_field("slots"));
    }
    Ok((HEADER_WORDS + slots as usize) * WORD_BYTES)
}

impl SharedIndex {
    /// Creates a table.
    ///
    /// # Errors
    /// `Invalid` for zero slots or more than [`SHARED_INDEX_SLOTS_MAX`], `Io` when the system has no more memory.
    pub fn create(slots: u32) -> Result<Self> {
        let (fd, _) = allocate(bytes_of(slots)?, OnFork::Inherit)?;
        Ok(Self { words: Words::map(fd.as_fd(), slots, Access::Write)?, fd })
    }

    /// Opens a table that is not sealed yet, for writing.
    ///
    /// # Errors
    /// `Invalid` for a descriptor of another length, `Io` when the table is sealed.
    pub fn open(fd: OwnedFd, slots: u32) -> Result<Self> {
        let bytes = bytes_of(slots)?;
        let found =
            rustix::fs::fstat(&fd).map_err(|error| Error::io("cannot inspect an index", &error.into()))?.st_size;
        if u64::try_from(found).ok() != Some(bytes as u64) {
            return Err(Error::invalid(format!("an index of {found} bytes for {slots} slots")).in_field("slots"));
        }
        Ok(Self { words: Words::map(fd.as_fd(), slots, Access::Write)?, fd })
    }

    /// Forbids new writable mappings. Existing ones stay writable.
    ///
    /// # Errors
    /// `Io` when the table is sealed already.
    pub fn seal(&self) -> Result<()> {
        seal(&self.fd, Guarantee::ProducerOnly)
    }

    /// The number of slots.
    pub fn slots(&self) -> u32 {
        self.words.slots
    }

    /// Sets a slot (release), and wakes readers that wait for it: a reader of this value also sees all earlier writes of this thread.
    ///
    /// # Panics
    /// When the table does not have the slot.
    pub fn set(&self, slot: u32, value: u64) {
        let word = self.words.slot(slot).expect("a slot beyond the table");
        word.store(value, Ordering::Release);
        self.words.all.wake(HEADER_WORDS + slot as usize);
    }

    /// Invalidates the table: from now on readers find no values, and those that wait for a slot go on.
    pub fn invalidate(&self) {
        self.words.state().store(ENDED, Ordering::Release);
        // A reader waits for the word of its slot, so that changes. Unused slots have no readers.
        for slot in 0..self.words.slots {
            if self.words.slot(slot).is_some_and(|word| word.load(Ordering::Relaxed) != 0) {
                self.set(slot, 0);
            }
        }
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
    /// `Refused` when the table is not sealed or has another length; `Io`.
    pub fn open(fd: &OwnedFd, slots: u32) -> Result<Self> {
        check_sealed(fd, bytes_of(slots)?, Guarantee::ProducerOnly)?;
        let shared = reopen_to_read(fd).and_then(|fd| Words::map(fd.as_fd(), slots, Access::ReadShared));
        // Without /proc, the words can be read, but not waited for.
        let (words, is_shared) = match shared {
            Ok(words) => (words, true),
            Err(_) => (Words::map(fd.as_fd(), slots, Access::Read)?, false),
        };
        Ok(Self { words, is_shared })
    }

    /// Waits until a slot does not have the value `seen` any more, until the table is [invalidated](SharedIndex::invalidate), or for
    /// `timeout`. It can also return earlier. False, without a wait, for an invalidated table, a slot that the table does not have, and where
    /// the table cannot be waited for.
    ///
    /// # Errors
    /// `Io`.
    pub fn wait(&self, slot: u32, seen: u64, timeout: Duration) -> Result<bool> {
        let can_wait = self.is_shared && self.get(slot).is_some();
        if can_wait {
            self.words.all.wait(HEADER_WORDS + slot as usize, seen, timeout)?;
        }
        Ok(can_wait)
    }

    /// The value of a slot (acquire); `None` when the table is [invalidated](SharedIndex::invalidate) or does not have
    /// the slot.
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
    fn readers_see_values_until_the_table_is_invalidated() {
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
        // A writer that mapped the table before the seal can invalidate it after the first writer is gone.
        drop(index);
        second.invalidate();
        assert_eq!(reader.get(0), None);
    }

    #[test]
    fn readers_that_wait_go_on_when_the_table_is_invalidated() {
        let index = SharedIndex::create(100).unwrap();
        index.seal().unwrap();
        let reader = SharedIndexReader::open(&copy(&index), 100).unwrap();
        index.set(7, 3);
        index.set(99, 4);
        std::thread::scope(|scope| {
            let waits = [(7, 3), (99, 4)].map(|(slot, seen)| {
                let (reader, (send, thread)) = (&reader, std::sync::mpsc::channel());
                let wait = scope.spawn(move || {
                    send.send(rustix::thread::gettid()).unwrap();
                    while reader.wait(slot, seen, Duration::from_secs(3600)).unwrap() {}
                });
                let stat = format!("/proc/self/task/{}/stat", thread.recv().unwrap().as_raw_nonzero());
                while !std::fs::read_to_string(&stat).unwrap().contains(") S ") {
                    std::thread::yield_now();
                }
                wait
            });
            index.invalidate();
            waits.into_iter().for_each(|wait| wait.join().unwrap());
        });
        assert_eq!(reader.get(7), None);
    }

    #[test]
    fn sealed_table_takes_no_writer_and_sizes_are_checked() {
        let index = SharedIndex::create(64).unwrap();
        assert!(SharedIndex::open(copy(&index), 65).is_err());
        index.seal().unwrap();
        assert_eq!(SharedIndex::open(copy(&index), 64).err().unwrap().kind(), ErrorKind::Io);
        assert!(SharedIndexReader::open(&copy(&index), 65).is_err());
        assert!(SharedIndex::create(0).is_err() && SharedIndex::create(SHARED_INDEX_SLOTS_MAX + 1).is_err());
    }

    #[test]
    fn reader_of_a_value_sees_earlier_writes() {
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
            assert!(reader.wait(1, 0, Duration::from_secs(60)).unwrap());
            assert!(!reader.wait(2, 0, Duration::from_secs(60)).unwrap(), "there is no such slot");
            while last < 10_000 {
                let value = reader.get(1).unwrap();
                assert!(value >= last && seen.load(Ordering::Relaxed) >= value);
                last = value;
            }
        });
    }
}
