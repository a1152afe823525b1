//! Channels between processes: frames, policies, limits, and the ends of producers, readers and daemons.

use crate::support::processes::{Processes, signal, start_test};
use crate::support::{Running, until};
use cotensor_client::protocol as p;
use cotensor_client::{Channel, ChannelPolicy, ChannelReader, ChannelSpec, ClientStore, Frame};
use cotensor_core::{DType, ErrorKind};
use cotensor_memory::{ChannelFiles, ChannelWriter};
use cotensor_store::StoreReports;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Signal;
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;

const BYTES: usize = 100_000;
/// Far longer than any frame takes.
const LONG: Duration = Duration::from_secs(60);
const NOW: Duration = Duration::ZERO;
/// The exit status of a producer whose name has become another's.
const TOLD: i32 = 7;
const SOCKET: &str = "COTENSOR_TEST_CHANNEL_SOCKET";

fn spec(name: &str) -> ChannelSpec {
    ChannelSpec::new(name, DType::U8, &[BYTES])
}

fn open(store: &Arc<ClientStore>) -> Channel {
    store.channel(spec("camera")).unwrap()
}

fn read(store: &Arc<ClientStore>, policy: ChannelPolicy) -> ChannelReader {
    store.read_channel("camera", policy, NOW).unwrap()
}

fn put(channel: &Channel, byte: u8) -> u64 {
    channel.put(&[byte; BYTES]).unwrap()
}

fn byte(frame: &Frame) -> u8 {
    let bytes = frame.lease().bytes().unwrap();
    assert!(bytes.len() == BYTES && bytes.iter().all(|byte| *byte == bytes[0]), "a whole frame");
    bytes[0]
}

fn next(reader: &ChannelReader) -> Frame {
    reader.next(LONG).unwrap().expect("the channel is open")
}

#[test]
fn frames_pass_to_other_clients_in_the_order_of_their_policy() {
    let running = Running::start(|_| {});
    let (producer, other) = (running.connect("producer"), running.connect("other"));
    let channel = open(&producer);
    let (newest, queue) = (read(&other, ChannelPolicy::Newest), read(&other, ChannelPolicy::Queue));
    assert!(newest.try_next().unwrap().is_none());
    assert_eq!(newest.next(NOW).err().unwrap().kind(), ErrorKind::TimedOut);
    for number in 1..=3 {
        assert_eq!(put(&channel, number), u64::from(number));
    }
    let frame = next(&newest);
    assert_eq!((byte(&frame), frame.number(), frame.lost(), newest.lost()), (3, 3, 2, 2));
    assert_eq!((frame.lease().dtype(), frame.lease().shape()), (DType::U8, &[BYTES][..]));
    for number in 1..=3 {
        let frame = next(&queue);
        assert_eq!((byte(&frame), frame.number(), frame.lost()), (number, u64::from(number), 0));
    }
    // A queue of four slots.
    (4..=11).for_each(|number| drop(channel.put(&[number; BYTES])));
    let after = next(&queue);
    assert_eq!((byte(&after), after.lost(), queue.lost()), (8, 4, 4));
    assert_eq!(byte(&frame), 3, "a frame that is held");
    // The producer's loan is the frame itself.
    let mut loan = channel.loan().unwrap();
    loan.bytes_mut().fill(77);
    assert_eq!(loan.publish().unwrap(), 12);
    drop(frame);
    assert_eq!(byte(&next(&newest)), 77);
}

#[test]
fn frame_that_is_waited_for_wakes_its_reader() {
    let running = Running::start(|_| {});
    let (producer, other) = (running.connect("producer"), running.connect("other"));
    let (channel, reader) = (open(&producer), read(&other, ChannelPolicy::Queue));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| (0..50).map(|_| byte(&next(&reader))).collect::<Vec<_>>());
        for number in 0..50 {
            put(&channel, number);
            // The next one comes while the reader waits.
            until("the frame was taken", || reader.last() == u64::from(number) + 1);
        }
        assert_eq!(waiting.join().unwrap(), (0..50).collect::<Vec<u8>>());
    });
}

#[test]
fn closed_channel_ends_after_its_last_frame() {
    let running = Running::start(|_| {});
    let (producer, other) = (running.connect("producer"), running.connect("other"));
    let (channel, reader) = (open(&producer), read(&other, ChannelPolicy::Queue));
    put(&channel, 1);
    put(&channel, 2);
    channel.close();
    assert_eq!(channel.put(&[3; BYTES]).unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!([byte(&next(&reader)), byte(&next(&reader))], [1, 2]);
    assert!(reader.next(LONG).unwrap().is_none() && !reader.is_open().unwrap());
    until("the name is free", || other.channels().unwrap().is_empty());
    let again = open(&other);
    assert_eq!(again.newest(), 0);
    std::thread::scope(|scope| {
        let reader = read(&producer, ChannelPolicy::Newest);
        let waiting = scope.spawn(move || reader.next(LONG).unwrap().is_none());
        std::thread::sleep(Duration::from_millis(50));
        again.close();
        assert!(waiting.join().unwrap(), "a reader that waits sees the end");
    });
}

#[test]
fn name_has_one_producer_and_the_memory_counts_in_the_budget() {
    let running = Running::start(|config| config.max_memory_bytes = 2 << 20);
    let (producer, other) = (running.connect("producer"), running.connect("other"));
    let channel = open(&producer);
    let bytes = channel.spec().size().unwrap().total_bytes().unwrap() as u64;
    assert_eq!(other.stats().memory_usage_bytes, bytes);
    let error = other.channel(spec("camera")).err().unwrap();
    assert!(error.kind() == ErrorKind::Conflict && error.to_string().contains("producer"), "{error}");
    assert_eq!(other.channel(spec("second")).err().unwrap().kind(), ErrorKind::OverBudget);
    // Refused before its memory is made: the machine has too little for it.
    let huge = ChannelSpec { shape: vec![1 << 38], ..spec("huge") };
    let refused = other.channel(huge).err().unwrap();
    assert!(
        refused.kind() == ErrorKind::OverBudget && refused.to_string().contains("do not fit the budget"),
        "{refused}"
    );
    let listed = other.channels().unwrap();
    assert_eq!((listed.len(), listed[0].bytes, listed[0].frames, listed[0].open_readers), (1, bytes, 0, 0));
    drop(channel);
    running.settles_at(0);
    drop(open(&other));
    for (field, wrong) in [
        ("name", spec("")),
        ("slots", ChannelSpec { slots: 0, ..spec("camera") }),
        ("readers", ChannelSpec { readers: 33, ..spec("camera") }),
        ("shape", ChannelSpec { shape: vec![0], ..spec("camera") }),
        ("shape", ChannelSpec { shape: vec![usize::MAX, 2], ..spec("camera") }),
    ] {
        let error = other.channel(wrong).err().unwrap();
        assert_eq!((error.kind(), error.field()), (ErrorKind::Invalid, Some(field)), "{error}");
    }
    assert_eq!(other.read_channel("camera", ChannelPolicy::Newest, NOW).err().unwrap().kind(), ErrorKind::NotFound);
}

#[test]
fn name_stays_with_its_channel_and_can_be_opened_again() {
    let running = Running::start(|_| {});
    let (producer, other) = (running.connect("producer"), running.connect("other"));
    let first = open(&producer);
    assert_eq!(producer.channel(spec("camera")).err().unwrap().kind(), ErrorKind::Conflict);
    assert_eq!(producer.channels().unwrap().len(), 1, "the attempt leaves the first one alone");
    let reader = read(&other, ChannelPolicy::Queue);
    first.close();
    let again = open(&producer);
    drop(first);
    assert_eq!(producer.channels().unwrap().len(), 1, "the end of the first one leaves the second one alone");
    put(&again, 2);
    assert!(reader.next(LONG).unwrap().is_none(), "a reader of the first one");
    assert_eq!(byte(&next(&read(&other, ChannelPolicy::Queue))), 2);
    let bytes = again.spec().size().unwrap().total_bytes().unwrap() as u64;
    running.settles_at(bytes);
    // A loan does not keep its channel open.
    let loan = again.loan().unwrap();
    drop(again);
    assert_eq!(loan.publish().unwrap_err().kind(), ErrorKind::Conflict);
    running.settles_at(0);
}

#[test]
fn closed_channel_stays_closed_after_a_lost_connection() {
    let running = Running::start(|_| {});
    let (producer, other) = (running.connect("producer"), running.connect("other"));
    let channel = open(&producer);
    channel.close();
    running.shut_down("producer");
    assert!(producer.channels().unwrap().is_empty());
    drop(open(&other));
    drop(channel);
}

/// A reader has the ring, too, and could show it with other memory.
#[test]
fn channel_is_not_replaced_by_its_reader() {
    let running = Running::start(|_| {});
    let channel = open(&running.connect("producer"));
    put(&channel, 1);
    let mut child = start(&running.socket, "thief");
    child.wait().unwrap();
    let store = running.connect("reader");
    let listed = store.channels().unwrap();
    assert!(listed[0].client.starts_with("producer"), "{listed:?}");
    assert_eq!(byte(&next(&read(&store, ChannelPolicy::Newest))), 1);
}

#[test]
fn reader_that_is_closed_ends_its_waits_and_frees_its_page() {
    let running = Running::start(|_| {});
    let (producer, other) = (running.connect("producer"), running.connect("other"));
    let channel = producer.channel(ChannelSpec { readers: 1, ..spec("camera") }).unwrap();
    for _ in 0..10 {
        let reader = read(&other, ChannelPolicy::Queue);
        reader.descriptor().unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
    let reader = read(&other, ChannelPolicy::Queue);
    std::thread::scope(|scope| {
        let waiting = [(); 2].map(|()| scope.spawn(|| reader.next(LONG).err().unwrap().kind()));
        std::thread::sleep(Duration::from_millis(5));
        reader.close();
        assert_eq!(waiting.map(|waiting| waiting.join().unwrap()), [ErrorKind::Conflict; 2]);
    });
    assert_eq!(reader.try_next().err().unwrap().kind(), ErrorKind::Conflict);
    drop(reader);
    put(&channel, 1);
    assert_eq!(byte(&next(&read(&other, ChannelPolicy::Newest))), 1);
}

#[test]
fn daemon_of_sealed_memory_alone_refuses_channels() {
    let running = Running::start(|config| config.small_bytes_max = 0);
    let error = running.connect("producer").channel(spec("camera")).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
}

#[test]
fn readers_and_the_frames_that_they_hold_are_limited() {
    let running = Running::start(|_| {});
    let (producer, other) = (running.connect("producer"), running.connect("other"));
    let channel = producer.channel(ChannelSpec { readers: 1, ..spec("camera") }).unwrap();
    let reader = read(&other, ChannelPolicy::Queue);
    let error = producer.read_channel("camera", ChannelPolicy::Queue, NOW).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    (1..=4).for_each(|number| drop(channel.put(&[number; BYTES])));
    let held = [next(&reader), next(&reader)];
    let error = reader.try_next().err().unwrap();
    assert!(error.kind() == ErrorKind::OverBudget && error.to_string().contains("holds 2 frames"), "{error}");
    let [first, second] = held;
    drop(first);
    assert_eq!(byte(&next(&reader)), 3);
    // A frame keeps the page of its reader.
    drop(reader);
    assert!(producer.read_channel("camera", ChannelPolicy::Queue, NOW).is_err());
    (5..=50).for_each(|number| drop(channel.put(&[number; BYTES])));
    assert_eq!(byte(&second), 2);
    drop(second);
    assert_eq!(byte(&next(&read(&producer, ChannelPolicy::Newest))), 50);
}

#[test]
fn channel_outlives_the_server_and_takes_new_readers() {
    let processes = Processes::start();
    let (producer, other) = (processes.connect("producer"), processes.connect("other"));
    let (channel, reader) = (open(&producer), read(&other, ChannelPolicy::Queue));
    for round in 0..3 {
        put(&channel, round);
        processes.kill_server();
        assert_eq!(byte(&next(&reader)), round, "frames pass by the daemon");
        until("the channel is open again", || other.channels().is_ok_and(|channels| channels.len() == 1));
        assert_eq!(byte(&next(&read(&other, ChannelPolicy::Newest))), round);
    }
    let bytes = channel.spec().size().unwrap().total_bytes().unwrap() as u64;
    assert_eq!(other.stats().memory_usage_bytes, bytes, "it counts once");
}

#[test]
fn channel_outlives_lost_connections() {
    let running = Running::start(|_| {});
    let (producer, other) = (running.connect("producer"), running.connect("other"));
    let (channel, reader) = (open(&producer), read(&other, ChannelPolicy::Queue));
    for round in 0..10 {
        running.shut_down("producer");
        running.shut_down("other");
        put(&channel, round);
        assert_eq!(byte(&next(&reader)), round);
    }
    let again = other.read_channel("camera", ChannelPolicy::Newest, LONG).unwrap();
    assert_eq!(byte(&next(&again)), 9);
}

#[test]
fn producer_is_told_that_another_one_has_the_name_by_now() {
    let running = Running::start(|_| {});
    let other = running.connect("other");
    let mut child = start(&running.socket, "producer");
    // Stopped, it cannot open its channel again.
    signal(child.id(), Signal::STOP);
    running.shut_down("child");
    let mut again = other.channel(spec("camera"));
    until("the name is free", || {
        again = other.channel(spec("camera"));
        again.is_ok()
    });
    signal(child.id(), Signal::CONT);
    assert_eq!(child.wait().unwrap().code(), Some(TOLD));
    put(again.as_ref().unwrap(), 3);
    assert_eq!(byte(&next(&read(&other, ChannelPolicy::Newest))), 3);
}

#[test]
fn descriptor_is_readable_when_a_frame_or_the_end_comes() {
    let running = Running::start(|_| {});
    let (producer, other) = (running.connect("producer"), running.connect("other"));
    let (channel, reader) = (open(&producer), read(&other, ChannelPolicy::Queue));
    let fd = reader.descriptor().unwrap();
    let is_readable = |wait: bool| {
        let mut polled = [PollFd::new(&fd, PollFlags::IN)];
        let limit = if wait { LONG } else { NOW };
        poll(&mut polled, Some(&limit.try_into().unwrap())).unwrap() > 0
    };
    let clear = || rustix::io::read(fd, &mut [0; 8]).unwrap();
    assert!(!is_readable(false));
    for number in 1..4 {
        put(&channel, number);
        assert!(is_readable(true));
        clear();
        assert_eq!(byte(&next(&reader)), number);
        assert!(reader.try_next().unwrap().is_none());
    }
    drop(channel);
    assert!(is_readable(true));
    assert!(reader.next(NOW).unwrap().is_none());
}

/// Publishes frames until it is killed; tries to replace a channel by memory of its own; or takes and holds two frames and waits to be
/// killed.
#[test]
#[ignore = "the process that the other tests kill"]
fn child() {
    let (socket, role) =
        std::env::var(SOCKET).unwrap().split_once('\n').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    let store = ClientStore::connect(Some(Path::new(&socket)), "child").unwrap();
    match role.as_str() {
        "producer" => {
            let channel = open(&store);
            println!("\nready");
            let mut number = 0u8;
            loop {
                number = number.wrapping_add(1);
                if let Err(error) = channel.put(&[number; BYTES]) {
                    std::process::exit(if error.kind() == ErrorKind::Conflict { TOLD } else { 1 });
                }
            }
        }
        "thief" => {
            println!("\nready");
            let raw = cotensor_client::connect(Path::new(&socket), Box::new(|_: &str, _: &_, _| {})).unwrap();
            let hello = p::HelloParams { protocol: p::PROTOCOL, client: "thief".to_owned(), ..Default::default() };
            raw.call::<p::Hello>(&hello, Vec::new(), None).unwrap();
            let name = p::ChannelNameParams { name: "camera".to_owned() };
            let ring = raw.call::<p::JoinChannel>(&name, Vec::new(), None).unwrap().1.swap_remove(1);
            let ChannelSpec { name, dtype, shape, slots, readers, holds } = spec("camera");
            let size = spec("camera").size().unwrap();
            let ChannelFiles { memory, pages, .. } = ChannelWriter::create(size).unwrap().files().unwrap();
            let params = p::OpenChannelParams { name, dtype: dtype.name().to_owned(), shape, slots, readers, holds };
            let fds = [memory, ring].into_iter().chain(pages).collect();
            drop(raw.call::<p::OpenChannel>(&params, fds, None));
            std::process::exit(0);
        }
        _ => {
            let reader = read(&store, ChannelPolicy::Queue);
            let _held = [next(&reader), next(&reader)];
            println!("\nready");
            loop {
                std::thread::park();
            }
        }
    }
}

fn start(socket: &Path, role: &str) -> Child {
    start_test("channels::child", [(SOCKET, format!("{}\n{role}", socket.display()))], |line| line == "ready")
}

#[test]
fn reader_sees_the_death_of_its_producer() {
    let running = Running::start(|_| {});
    let store = running.connect("reader");
    for policy in [ChannelPolicy::Newest, ChannelPolicy::Queue] {
        let mut child = start(&running.socket, "producer");
        let reader = store.read_channel("camera", policy, LONG).unwrap();
        let held = next(&reader);
        let kept = byte(&held);
        assert!((0..200).all(|_| next(&reader).number() > 0));
        child.kill().unwrap();
        child.wait().unwrap();
        let error = loop {
            match reader.next(LONG) {
                Ok(Some(frame)) => drop(byte(&frame)),
                Ok(None) => panic!("the channel was not closed"),
                Err(error) => break error,
            }
        };
        assert!(error.kind() == ErrorKind::Io && error.to_string().contains("child["), "{error}");
        assert_eq!(byte(&held), kept);
    }
    // The name is free.
    until("the daemon sees the end", || store.channels().unwrap().is_empty());
    drop(open(&store));
}

#[test]
fn frames_of_a_killed_reader_are_used_again() {
    let running = Running::start(|_| {});
    let store = running.connect("producer");
    let channel = store.channel(ChannelSpec { readers: 2, ..spec("camera") }).unwrap();
    let living = read(&store, ChannelPolicy::Newest);
    put(&channel, 0);
    let held = next(&living);
    for round in 1..4 {
        (0..4).for_each(|_| drop(channel.put(&[round; BYTES])));
        let mut child = start(&running.socket, "reader");
        assert!(read_fails(&store), "both pages have readers");
        child.kill().unwrap();
        child.wait().unwrap();
        (0..20).for_each(|_| drop(channel.put(&[round; BYTES])));
        let _loans = [channel.loan().unwrap(), channel.loan().unwrap()];
    }
    assert_eq!(byte(&held), 0);
}

fn read_fails(store: &Arc<ClientStore>) -> bool {
    store.read_channel("camera", ChannelPolicy::Newest, NOW).is_err()
}

#[test]
fn stopped_daemon_and_stopped_reader_do_not_block_the_producer() {
    let processes = Processes::start();
    let store = processes.connect("producer");
    let channel = open(&store);
    put(&channel, 1);
    put(&channel, 2);
    let mut child = start(&processes.socket, "reader");
    signal(child.id(), Signal::STOP);
    let reader = read(&store, ChannelPolicy::Newest);
    signal(processes.server(), Signal::STOP);
    for number in 0..1000u64 {
        put(&channel, number as u8);
        assert_eq!(byte(&next(&reader)), number as u8);
    }
    signal(processes.server(), Signal::CONT);
    child.kill().unwrap();
    child.wait().unwrap();
}
