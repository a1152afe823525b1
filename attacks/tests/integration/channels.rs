//! Channels: readers that try to change frames or to stop the producer, and files that are not those of a channel.

use crate::descriptors::{memfd, size_seals, wrong};
use crate::immutable::changes;
use cotensor_attacks::{Target, assert_no_secrets, content};
use cotensor_client::{ChannelPolicy, ChannelReader, ChannelSpec, ClientStore, Frame, protocol as p};
use cotensor_core::DType;
use cotensor_memory::{ChannelFiles, ChannelWriter, SharedIndex};
use rustix::fs::SealFlags;
use serde_json::json;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const FRAME: usize = 128 << 10;
/// Far longer than any frame takes.
const LONG: Duration = Duration::from_secs(60);

fn spec(bytes: usize) -> ChannelSpec {
    ChannelSpec { slots: 2, readers: 2, holds: 2, ..ChannelSpec::new("secret-channel", DType::U8, &[bytes]) }
}

fn read(store: &Arc<ClientStore>) -> ChannelReader {
    store.read_channel("secret-channel", ChannelPolicy::Queue, LONG).unwrap()
}

fn next(reader: &ChannelReader) -> Frame {
    reader.next(LONG).unwrap().expect("the channel is open")
}

/// The descriptors that a reader gets: those of memory, ring and page, and the lock of the page.
fn join(socket: &Path) -> [OwnedFd; 4] {
    let connection = cotensor_client::connect(socket, Box::new(|_: &str, _: &_, _| {})).unwrap();
    let hello = p::HelloParams { protocol: p::PROTOCOL, client: "attacker".to_owned(), ..Default::default() };
    connection.call::<p::Hello>(&hello, Vec::new(), None).unwrap();
    let name = p::ChannelNameParams { name: "secret-channel".to_owned() };
    connection.call::<p::JoinChannel>(&name, Vec::new(), None).unwrap().1.try_into().unwrap()
}

#[test]
fn readers_cannot_change_frames_or_the_ring() {
    let target = Target::start(|_| {});
    let (producer, other) = (target.connect("producer"), target.connect("reader"));
    let channel = producer.channel(spec(FRAME)).unwrap();
    let (reader, size) = (read(&other), spec(FRAME).size().unwrap());
    channel.put(&content(FRAME)).unwrap();
    let frame = next(&reader);
    let [memory, ring, page, lock] = join(&target.socket);
    assert_eq!(changes(&memory, size.memory_bytes().unwrap()), [] as [&str; 0]);
    assert_eq!(changes(&ring, size.ring_bytes()), [] as [&str; 0]);
    // Its own page is there to be written. The same attempts work, but for those that would end the producer or the next reader.
    let own = changes(&page, size.page_bytes());
    assert!(own.contains(&"writing") && own.contains(&"mapping for writing"), "{own:?}");
    assert!(["truncating", "growing", "another seal"].iter().all(|change| !own.contains(change)), "{own:?}");
    assert!(frame.lease().bytes().unwrap() == content(FRAME));
    let mut later = content(FRAME);
    later.reverse();
    for _ in 0..20 {
        channel.put(&later).unwrap();
        assert!(next(&reader).lease().bytes().unwrap() == later);
    }
    assert!(frame.lease().bytes().unwrap() == content(FRAME), "its reader holds it");
    drop((memory, ring, page, lock, frame, reader, channel, producer, other));
    target.assert_unharmed();
}

#[test]
fn forged_holds_stop_no_producer_and_no_other_reader() {
    const BYTES: usize = 4096;
    let target = Target::start(|_| {});
    let (producer, other) = (target.connect("producer"), target.connect("reader"));
    let channel = producer.channel(spec(BYTES)).unwrap();
    let (reader, size) = (read(&other), spec(BYTES).size().unwrap());
    let files = join(&target.socket);
    // The words after the first one are the holds: frames by number and slot.
    let holds = SharedIndex::open(files[2].try_clone().unwrap(), (size.page_bytes() / 8 - 1) as u32).unwrap();
    channel.put(&content(BYTES)).unwrap();
    let kept = next(&reader);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The first word counts the threads that wait, of which there is none.
            holds.invalidate();
            for word in (1..).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                let frame = ((channel.newest() + word % 3) << 16) | (word % (size.frames() as u64 + 1));
                let forged = if word % 7 == 0 { u64::MAX - word } else { frame };
                (0..holds.slots()).for_each(|hold| holds.set(hold, forged));
            }
        });
        for round in 0..5000_u32 {
            channel.put(&[round as u8; BYTES]).unwrap();
            let frame = next(&reader);
            assert!(frame.lease().bytes().unwrap() == [round as u8; BYTES] && frame.lost() == 0, "{round}");
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(kept.lease().bytes().unwrap() == content(BYTES), "its reader holds it");
    // All loans are possible while the attacker names frames.
    let loans = [channel.loan().unwrap(), channel.loan().unwrap(), channel.loan().unwrap()];
    drop((loans, holds, files, kept, reader, channel, producer, other));
    target.assert_unharmed();
}

#[test]
fn files_that_are_not_those_of_a_channel_are_refused() {
    let target = Target::start(|_| {});
    let mut raw = target.raw();
    // 512 frames: 32 KiB of memory, and a ring of 8 KiB.
    let spec = ChannelSpec { slots: 508, readers: 1, holds: 1, ..ChannelSpec::new("wrong", DType::U8, &[64]) };
    let size = spec.size().unwrap();
    let writer = ChannelWriter::create(size).unwrap();
    let files = || {
        let ChannelFiles { memory, ring, pages } = writer.files().unwrap();
        [memory, ring].into_iter().chain(pages).collect::<Vec<_>>()
    };
    let params = json!({
        "name": spec.name, "dtype": "uint8", "shape": [64], "slots": spec.slots, "readers": 1, "holds": 1
    });
    let mut refused = |what: &str, fds: &[OwnedFd]| {
        let error = raw.refused("channel.open", params.clone(), fds);
        assert_no_secrets(&error);
        assert!(error.contains("refused") || error.contains("descriptor"), "{what}: {error}");
    };
    for (part, bytes) in [(0, size.memory_bytes().unwrap()), (1, size.ring_bytes())] {
        for (what, fd) in wrong(bytes) {
            let mut fds = files();
            fds[part] = fd;
            refused(what, &fds);
        }
    }
    let page = size.page_bytes() as u64;
    let pages = [
        ("a pipe", rustix::pipe::pipe().unwrap().0),
        ("not sealed", memfd(page, page, SealFlags::empty())),
        ("not sealed against growing", memfd(page, page, SealFlags::SHRINK)),
        ("a longer page", memfd(page + 1, page + 1, size_seals())),
        ("backed by nothing", memfd(page, 0, size_seals())),
    ];
    for (what, fd) in pages {
        let mut fds = files();
        fds[2] = fd;
        refused(what, &fds);
    }
    refused("a page too few", &files()[..2]);
    assert!(raw.call("channel.open", params, &files()).is_ok(), "the right ones");
    drop((raw, writer));
    target.assert_unharmed();
}
