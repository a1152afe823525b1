use super::*;
use crate::host::{Guarantee, SealedMemfd};
use cotensor_core::{ErrorKind, Segment};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const SIZE: ChannelSize = ChannelSize { frame_bytes: 4096, slots: 3, readers: 2, holds: 2 };

/// A reader with the memory of the frames.
struct Reader {
    ring: Arc<RingReader>,
    memory: Arc<SealedMemfd>,
}

fn read(writer: &ChannelWriter, page: u32) -> Reader {
    let mut files = writer.files().unwrap();
    files.check(writer.size()).unwrap();
    let lock = reader_lock(&files.ring, page).unwrap().expect("no reader has the page");
    let page = files.pages.swap_remove(page as usize);
    let len = writer.size().memory_bytes().unwrap();
    let memory = SealedMemfd::open_once(files.memory, len, Guarantee::ProducerOnly).unwrap();
    Reader { ring: RingReader::open(files.ring, page, lock, *writer.size()).unwrap(), memory }
}

impl Reader {
    fn bytes(&self, hold: &FrameHold) -> &[u8] {
        &self.memory.bytes().unwrap()[hold.range()]
    }

    fn take(&self, policy: Policy, last: u64) -> Option<FrameHold> {
        self.ring.take(policy, last).unwrap()
    }
}

fn publish(writer: &Arc<ChannelWriter>, byte: u8) -> u64 {
    let mut loan = writer.loan().unwrap();
    loan.bytes_mut().fill(byte);
    loan.publish().unwrap()
}

fn publish_each(writer: &Arc<ChannelWriter>, bytes: impl IntoIterator<Item = u8>) {
    for byte in bytes {
        publish(writer, byte);
    }
}

fn is_all(bytes: &[u8], byte: u8) -> bool {
    // Without optimisation, and more so under valgrind, slices are compared much faster than single bytes.
    bytes.chunks(256).all(|chunk| *chunk == [byte; 256][..chunk.len()])
}

#[test]
fn readers_take_the_newest_frame_or_each_one() {
    let writer = ChannelWriter::create(SIZE).unwrap();
    let (newest, queue) = (read(&writer, 0), read(&writer, 1));
    assert!(newest.take(Policy::Newest, 0).is_none());
    for byte in 1..=2 {
        assert_eq!(publish(&writer, byte), u64::from(byte));
    }
    let frame = newest.take(Policy::Newest, 0).unwrap();
    assert_eq!((frame.number(), is_all(newest.bytes(&frame), 2)), (2, true));
    assert!(newest.take(Policy::Newest, 2).is_none());
    for (last, byte) in [(0, 1), (1, 2)] {
        let frame = queue.take(Policy::Queue, last).unwrap();
        assert_eq!((frame.number(), is_all(queue.bytes(&frame), byte)), (last + 1, true));
    }
    publish_each(&writer, 3..=9);
    let frame = queue.take(Policy::Queue, 2).unwrap();
    assert_eq!((frame.number(), is_all(queue.bytes(&frame), 7)), (7, true), "the oldest one of three");
    assert!(frame.age() < Duration::from_secs(60));
    assert_eq!((queue.ring.start(Policy::Queue), queue.ring.start(Policy::Newest)), (6, 8));
}

#[test]
fn frame_that_is_held_keeps_its_bytes() {
    let writer = ChannelWriter::create(SIZE).unwrap();
    let readers = [read(&writer, 0), read(&writer, 1)];
    let mut held = Vec::new();
    for byte in 1..=2 {
        publish(&writer, byte);
        held.extend(readers.iter().map(|reader| (reader, reader.take(Policy::Newest, 0).unwrap(), byte)));
    }
    let full = readers[0].ring.take(Policy::Newest, 0).err().unwrap();
    assert_eq!(full.kind(), ErrorKind::OverBudget, "{full}");
    publish_each(&writer, 3..=200);
    assert!(held.iter().all(|(reader, hold, byte)| is_all(reader.bytes(hold), *byte)));
    held.clear();
    publish(&writer, 201);
    assert!(is_all(readers[0].bytes(&readers[0].take(Policy::Newest, 0).unwrap()), 201));
}

#[test]
fn three_frames_are_loaned_at_most_also_when_readers_hold_all_they_may() {
    let writer = ChannelWriter::create(SIZE).unwrap();
    let readers = [read(&writer, 0), read(&writer, 1)];
    let mut held = Vec::new();
    for byte in 1..=4 {
        publish(&writer, byte);
        held.push(readers[usize::from(byte) % 2].take(Policy::Newest, 0).unwrap());
    }
    publish_each(&writer, 5..=8);
    let loans = [writer.loan().unwrap(), writer.loan().unwrap(), writer.loan().unwrap()];
    assert_eq!(writer.loan().err().unwrap().kind(), ErrorKind::Conflict);
    drop(loans);
    publish(&writer, 9);
    drop(held);
}

#[test]
fn holds_of_a_dead_reader_end_with_its_lock() {
    let writer = ChannelWriter::create(SIZE).unwrap();
    let other = read(&writer, 1);
    publish(&writer, 0);
    let living = other.take(Policy::Newest, 0).unwrap();
    for round in 1..=20u8 {
        let reader = read(&writer, 0);
        for _ in 0..2 {
            publish(&writer, round);
            reader.take(Policy::Newest, 0).unwrap().abandon();
        }
        drop(reader);
        // All slots are needed.
        publish_each(&writer, [round; 8]);
        let _loans = [writer.loan().unwrap(), writer.loan().unwrap(), writer.loan().unwrap()];
    }
    assert!(is_all(other.bytes(&living), 0));
}

#[test]
fn page_has_one_reader_and_producer_one_lock() {
    let writer = ChannelWriter::create(SIZE).unwrap();
    let reader = read(&writer, 0);
    let files = writer.files().unwrap();
    assert!(reader_lock(&files.ring, 0).unwrap().is_none());
    publish(&writer, 1);
    let hold = reader.take(Policy::Newest, 0).unwrap();
    let ring = Arc::clone(&reader.ring);
    drop(reader);
    assert!(reader_lock(&files.ring, 0).unwrap().is_none(), "a hold keeps the page");
    assert!(ring.is_open() && !ring.is_closed());
    writer.close();
    assert!(!ring.is_open() && ring.is_closed());
    assert_eq!(writer.loan().err().unwrap().kind(), ErrorKind::Conflict);
    drop((hold, ring));
    assert!(reader_lock(&files.ring, 0).unwrap().is_some());
}

#[test]
fn producer_that_ends_without_closing_is_noticed() {
    let writer = ChannelWriter::create(SIZE).unwrap();
    let reader = read(&writer, 0);
    let Ok(writer) = Arc::try_unwrap(writer).map_err(drop) else { panic!("another reference") };
    assert!(reader.ring.is_open());
    // As after a kill: the ring is not closed, and its lock is released.
    writer.abandon();
    assert!(!reader.ring.is_open() && !reader.ring.is_closed());
}

#[test]
fn files_of_other_sizes_and_without_seals_are_refused() {
    let writer = ChannelWriter::create(SIZE).unwrap();
    let files = writer.files().unwrap();
    let larger = ChannelSize { frame_bytes: 8192, ..SIZE };
    assert_eq!(files.check(&larger).unwrap_err().kind(), ErrorKind::Refused);
    let fewer = ChannelSize { readers: 1, ..SIZE };
    assert!(files.check(&fewer).is_err());
    let mut swapped = files.try_clone().unwrap();
    swapped.pages[0] = writer.files().unwrap().ring;
    assert!(swapped.check(&SIZE).is_err(), "a ring is not a page");
    let mut swapped = files.try_clone().unwrap();
    swapped.ring = writer.files().unwrap().pages.remove(0);
    assert!(swapped.check(&SIZE).is_err(), "a page is not a ring");
}

/// Readers hold, check and drop frames while the producer publishes as fast as it can.
#[test]
fn no_frame_changes_while_it_is_held() {
    const FRAMES: u64 = if cfg!(miri) { 200 } else { 60_000 };
    let size = ChannelSize { frame_bytes: 512, slots: 2, readers: 3, holds: 2 };
    let (writer, done) = (ChannelWriter::create(size).unwrap(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for (page, policy) in [(0, Policy::Newest), (1, Policy::Queue), (2, Policy::Queue)] {
            let (reader, done) = (read(&writer, page), &done);
            scope.spawn(move || {
                let (mut last, mut taken) = (0, 0);
                let mut before: Option<(FrameHold, u8)> = None;
                loop {
                    let ended = done.load(Ordering::Acquire);
                    let seen = reader.ring.signal();
                    match reader.ring.take(policy, last).unwrap() {
                        Some(frame) => {
                            assert!(frame.number() > last);
                            (last, taken) = (frame.number(), taken + 1);
                            let byte = last as u8;
                            assert!(is_all(reader.bytes(&frame), byte), "frame {last}");
                            if let Some((frame, byte)) = before.replace((frame, byte)) {
                                assert!(is_all(reader.bytes(&frame), byte), "the frame before {last}");
                            }
                        }
                        None if ended => break,
                        None => reader.ring.wait(seen, Duration::from_millis(50)).unwrap(),
                    }
                }
                assert!(last == FRAMES && taken > 0, "{taken} frames, the last one {last}");
            });
        }
        for number in 1..=FRAMES {
            assert_eq!(publish(&writer, number as u8), number);
            if number % 64 == 0 {
                std::thread::yield_now();
            }
        }
        done.store(true, Ordering::Release);
        writer.close();
    });
}
