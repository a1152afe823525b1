//! Readers of producers that stop in the middle of a publication, and of those that lie.

use super::size::ChannelSize;
use super::{Entry, PRODUCER, Policy, RingReader, reader_lock, ring_words};
use crate::host::{Guarantee, SharedWords, allocate, seal};
use crate::mapping::{Access, OnFork};
use crate::process::{LockTable, duplicate_fd};
use cotensor_core::Result;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const SIZE: ChannelSize = ChannelSize { frame_bytes: 64, slots: 3, readers: 1, holds: 2 };

/// A ring with words of any value, and a reader of it.
struct Forged {
    size: ChannelSize,
    words: SharedWords,
    reader: Arc<RingReader>,
    _lock: OwnedFd,
}

fn words(count: usize, guarantee: Guarantee) -> Result<(SharedWords, OwnedFd)> {
    let (fd, map) = allocate(count * size_of::<u64>(), OnFork::Exclude)?;
    drop(map);
    let words = SharedWords::map(fd.as_fd(), count, Access::Write)?;
    seal(&fd, guarantee)?;
    Ok((words, fd))
}

impl Forged {
    fn new(size: ChannelSize) -> Self {
        let (words, ring) = self::words(size.ring_word_count(), Guarantee::ProducerOnly).unwrap();
        let (_, page) = self::words(size.page_word_count(), Guarantee::Length).unwrap();
        let _lock = LockTable::open(duplicate_fd(&ring).unwrap()).lock(PRODUCER).unwrap();
        let lock = reader_lock(&ring, 0).unwrap().unwrap();
        Self { size, words, reader: RingReader::open(ring, page, lock, size).unwrap(), _lock }
    }

    fn set(&self, word: usize, value: u64) {
        self.words.word(word).store(value, Ordering::Release);
    }

    /// Lists a frame without its number. None takes the frame in its place out of the ring.
    fn list(&self, number: u64, slot: Option<u16>) {
        let first = self.size.ring_word_of(number);
        self.set(first, slot.map_or(0, |slot| Entry { number, slot }.word()));
    }

    fn take(&self, policy: Policy, last: u64) -> Option<u64> {
        Some(self.reader.take(policy, last).unwrap()?.number())
    }
}

/// The producer takes the oldest frame out of the ring, and may then be stopped or killed before it tells that there is a new one.
#[test]
fn frame_that_is_being_replaced_is_skipped() {
    let forged = Forged::new(SIZE);
    (2..=4).for_each(|number| forged.list(number, Some(number as u16)));
    forged.set(ring_words::NEWEST, 4);
    assert_eq!(forged.take(Policy::Queue, 1), Some(2));
    forged.list(5, None);
    assert_eq!([1, 2, 3].map(|last| forged.take(Policy::Queue, last)), [Some(3), Some(3), Some(4)]);
    assert_eq!(forged.take(Policy::Newest, 1), Some(4));
    let single = Forged::new(ChannelSize { slots: 1, ..SIZE });
    single.set(ring_words::NEWEST, 4);
    assert_eq!([Policy::Newest, Policy::Queue].map(|policy| single.take(policy, 1)), [None, None]);
}

#[test]
fn numbers_of_a_producer_that_lies_have_no_frames() {
    let forged = Forged::new(SIZE);
    let frames = SIZE.frames() as u16;
    for slot in [frames, u16::MAX] {
        forged.list(1, Some(slot));
        forged.set(ring_words::NEWEST, 1);
        assert_eq!([Policy::Newest, Policy::Queue].map(|policy| forged.take(policy, 0)), [None, None], "no such slot");
    }
    forged.list(1, Some(frames - 1));
    assert_eq!(forged.take(Policy::Queue, 0), Some(1));
    for newest in [u64::MAX, u64::MAX - 1, 1 << 48, 5] {
        forged.set(ring_words::NEWEST, newest);
        for policy in [Policy::Newest, Policy::Queue] {
            assert_eq!([0, 1, u64::MAX].map(|last| forged.take(policy, last)), [None; 3], "{newest}");
            assert!(forged.reader.start(policy) <= newest);
        }
    }
    forged.set(ring_words::NEWEST, 0);
    assert_eq!(forged.take(Policy::Queue, 1), None, "a number that goes back");
}

#[test]
fn threads_that_wait_end_when_their_reader_is_left() {
    let forged = Forged::new(SIZE);
    let seen = forged.reader.signal();
    std::thread::scope(|scope| {
        let waits: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    while !forged.reader.is_left() {
                        forged.reader.wait(seen, Duration::MAX).unwrap()
                    }
                })
            })
            .collect();
        forged.reader.leave();
        waits.into_iter().for_each(|wait| wait.join().unwrap());
        forged.reader.wait(seen, Duration::MAX).unwrap();
    });
}
