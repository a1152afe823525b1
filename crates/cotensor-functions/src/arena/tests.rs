//! Two arenas, whose messages arrive at once.

use super::{ConnectionArena, IDLE_MAX};
use crate::sender::Sender;
use cotensor_client::ClientStore;
use cotensor_client::protocol::provider as p;
use cotensor_core::sync::lock;
use cotensor_core::{DType, Error, ErrorKind, Result};
use cotensor_daemon::testing::Running;
use cotensor_memory::Slab;
use cotensor_rpc::{Incoming, parse_incoming};
use cotensor_store::{CopyReason, Lease, StoreReports, TensorSpec, TensorStore};
use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

/// Passes messages to the other end.
struct Link {
    /// Empty before both ends exist.
    other: OnceLock<Weak<ConnectionArena>>,
    /// A method that the other end does not know.
    unknown: Option<&'static str>,
    sent: Mutex<Vec<String>>,
}

impl Sender for Link {
    fn send_message(&self, body: Vec<u8>, fds: Vec<OwnedFd>) -> Result<()> {
        let Incoming::Notification { method, params } = parse_incoming(&body)? else { panic!("no notification") };
        lock(&self.sent).push(method.clone());
        let ended = || Error::new(ErrorKind::Io, "the other end has ended");
        let other = self.other.get().and_then(Weak::upgrade).ok_or_else(ended)?;
        if self.unknown == Some(method.as_str()) {
            return Ok(());
        }
        other.on_message(&method, params.get(), fds)
    }

    fn read_arrived(&self) -> Result<()> {
        Ok(())
    }

    fn close(&self) {}
}

struct Ends {
    caller: Arc<ConnectionArena>,
    provider: Option<Arc<ConnectionArena>>,
    store: Arc<ClientStore>,
    links: [Arc<Link>; 2],
    _running: Option<Running>,
}

impl Ends {
    /// Both ends, of which the provider's does not know the method `unknown`.
    fn new(unknown: Option<&'static str>) -> Self {
        let running = Running::start(|_| {});
        let ends = Self::of(running.connect("test"), unknown);
        Self { _running: Some(running), ..ends }
    }

    /// Both ends of another connection of the same client.
    fn beside(&self) -> Self {
        Self::of(Arc::clone(&self.store), None)
    }

    fn of(store: Arc<ClientStore>, unknown: Option<&'static str>) -> Self {
        // Longer than the test: the thread of the caller's end does nothing.
        let idle = 10 * IDLE_MAX;
        let (caller, provider) =
            (ConnectionArena::of_caller(&store, idle), ConnectionArena::of_provider(&store, IDLE_MAX));
        let link = |other: &Arc<ConnectionArena>, unknown| {
            Arc::new(Link { other: OnceLock::from(Arc::downgrade(other)), unknown, sent: Mutex::default() })
        };
        let links = [link(&provider, unknown), link(&caller, None)];
        let senders = links.each_ref().map(|link| Arc::clone(link) as Arc<dyn Sender>);
        provider.set_sender(Arc::downgrade(&senders[1]));
        caller.set_sender(Arc::downgrade(&senders[0]));
        Self { caller, provider: Some(provider), store, links, _running: None }
    }

    fn provider(&self) -> &Arc<ConnectionArena> {
        self.provider.as_ref().unwrap()
    }

    /// A tensor of equal bytes in the caller's arena; `None` without room.
    fn made(&self, len: usize, byte: u8) -> Option<Lease> {
        let segment = self.caller.reserve(len).unwrap()?;
        let spec = TensorSpec::new("made", DType::U8, &[len]);
        let (layout, holder) = (spec.layout().unwrap(), self.store.holder("test"));
        let mut reservation = self.store.reserve_in_private(spec, layout, segment, &holder).unwrap();
        reservation.write(&vec![byte; len], CopyReason::Put).unwrap();
        Some(reservation.publish().unwrap())
    }

    /// The tensor at the provider's end.
    fn received(&self, reference: &p::ArenaTensorRef) -> Result<Lease> {
        self.provider().lease(reference, &self.store, &self.store.holder("reader"))
    }

    /// Sends a tensor and returns its reference and the lease of the provider's end.
    fn passed(&self, len: usize, byte: u8) -> (p::ArenaTensorRef, Lease) {
        let reference = self.caller.reference(&self.made(len, byte).unwrap()).unwrap();
        let received = self.received(&reference).unwrap();
        assert!(received.bytes().unwrap() == vec![byte; len]);
        (reference, received)
    }
}

#[test]
fn blocks_are_used_again_and_given_back_when_they_are_idle() {
    let ends = Ends::new(None);
    let start = Instant::now();
    let (first, received) = ends.passed(2 << 20, 1);
    let (second, kept) = ends.passed(2 << 20, 2);
    assert_ne!(first.range, second.range);
    drop(received);
    assert!(ends.provider().give_back(start), "the caller's blocks are open");
    let (again, received) = ends.passed(2 << 20, 3);
    assert_eq!(again.range, first.range, "the released block");
    drop(received);
    ends.provider().give_back(start);
    assert!(ends.caller.give_back(start) && ends.caller.give_back(start + Duration::from_secs(39)));
    assert!(ends.received(&first).is_ok(), "not idle for long enough");
    ends.provider().give_back(start);
    assert!(ends.caller.give_back(start + Duration::from_secs(39)));
    assert!(ends.caller.give_back(start + Duration::from_secs(40)), "the second block is in use");
    assert_eq!(ends.received(&first).err().unwrap().kind(), ErrorKind::NotFound);
    assert!(kept.bytes().unwrap() == vec![2; 2 << 20]);
    drop(kept);
    ends.provider().give_back(start);
    ends.caller.give_back(start + Duration::from_secs(50));
    assert!(!ends.caller.give_back(start + Duration::from_secs(90)) && !ends.provider().give_back(start));
    let (third, _received) = ends.passed(2 << 20, 4);
    assert!(third.range.slab > second.range.slab, "a number is used once");
}

#[test]
fn shared_slabs_are_given_back_when_they_are_idle() {
    let ends = Ends::new(None);
    let start = Instant::now();
    let after = |seconds| start + Duration::from_secs(seconds);
    let pass = |byte| {
        let (reference, received) = ends.passed(1000, byte);
        drop(received);
        assert!(ends.provider().give_back(start), "the caller's slab is open");
        reference
    };
    let first = pass(1);
    assert!(ends.caller.give_back(start) && ends.caller.give_back(after(39)));
    assert_eq!(pass(2).range.slab, first.range.slab);
    assert!(ends.caller.give_back(after(41)), "used meanwhile");
    let (_, kept) = ends.passed(1000, 3);
    assert!(ends.caller.give_back(after(81)), "in use");
    drop(kept);
    ends.provider().give_back(start);
    assert!(ends.caller.give_back(after(90)));
    assert!(!ends.caller.give_back(after(130)) && !ends.provider().give_back(start));
    assert_eq!(ends.received(&first).err().unwrap().kind(), ErrorKind::NotFound);
    assert_eq!(ends.store.stats().ready_bytes, 0);
    assert!(pass(4).range.slab > first.range.slab, "a number is used once");
}

#[test]
fn unused_memory_of_all_connections_of_a_client_is_bounded() {
    let first = Ends::new(None);
    let start = Instant::now();
    let after = |seconds| start + Duration::from_secs(seconds);
    let mut all = vec![first];
    all.extend((0..3).map(|_| all[0].beside()).collect::<Vec<_>>());
    let passed: Vec<_> = (0..)
        .zip(&all)
        .map(|(number, ends)| {
            let (reference, received) = ends.passed(24 << 20, 1);
            drop(received);
            ends.provider().give_back(start);
            assert!(ends.caller.give_back(after(number)));
            reference
        })
        .collect();
    let store = Arc::clone(&all[0].store);
    assert_eq!(store.stats().ready_bytes, (4 * 24) << 20);
    store.bound_kept_memory(after(10));
    assert_eq!(store.stats().ready_bytes, (2 * 24) << 20, "at most 64 MiB");
    let is_open: Vec<_> = passed.iter().zip(&all).map(|(reference, ends)| ends.received(reference).is_ok()).collect();
    assert_eq!(is_open, [false, false, true, true], "the least recently used leave");
    all.iter().for_each(|ends| assert!(!ends.caller.give_back(after(50))));
    assert_eq!(store.stats().ready_bytes, 0);
}

#[test]
fn blocks_are_used_again_for_other_lengths() {
    let ends = Ends::new(None);
    let mut slabs = HashSet::new();
    // From half of a block to all of it, as batches of different lengths are.
    for len in [(2 << 20) + 1, 2_300_000, (5 << 19) - 1, 5 << 19, 5 << 18] {
        let (reference, received) = ends.passed(len, 1);
        slabs.insert(reference.range.slab);
        drop(received);
        ends.provider().give_back(Instant::now());
    }
    assert_eq!(slabs.len(), 1);
    let (shorter, _received) = ends.passed((5 << 18) - 1000, 2);
    assert!(!slabs.contains(&shorter.range.slab), "it would leave more than half of the block unused");
}

#[test]
fn small_and_large_tensors_have_different_slabs() {
    let ends = Ends::new(None);
    let lengths = [100, 300_000, 200_000, 4 << 20, 256 << 10, (256 << 10) + 1, 0, 100];
    let passed: Vec<_> = lengths.iter().zip(1..).map(|(&len, byte)| (ends.passed(len, byte), len, byte)).collect();
    let ranges: HashSet<_> = passed.iter().map(|((reference, _), ..)| reference.range).collect();
    assert_eq!(ranges.len(), lengths.len());
    for ((_, received), len, byte) in &passed {
        assert!(received.bytes().unwrap() == vec![*byte; *len]);
    }
    let mut opened = 0;
    let mut slabs = |len| {
        drop(ends.made(len, 0).unwrap());
        let before = std::mem::replace(
            &mut opened,
            lock(&ends.links[0].sent).iter().filter(|sent| *sent == "arena.open").count(),
        );
        opened - before
    };
    slabs(1);
    assert_eq!((slabs(1000), slabs(256 << 10), slabs((256 << 10) + 1)), (0, 0, 1), "256 KiB lie in the shared slabs");
}

#[test]
fn blocks_have_limits() {
    let ends = Ends::new(None);
    let held: Vec<_> = (0..2).map(|byte| ends.made(64 << 20, byte).unwrap()).collect();
    assert!(ends.made(64 << 20, 2).is_none() && ends.made(1 << 20, 2).is_none(), "128 MiB are in use");
    assert!(ends.made(1000, 2).is_some(), "small tensors have their own limit");
    drop(held);
    assert!(ends.made((64 << 20) + 1, 3).is_none());
    // A free block leaves for one of another length, and the other end closes it before it opens the new one.
    drop(ends.made(1 << 20, 3).unwrap());
    let sent = lock(&ends.links[0].sent).clone();
    assert_eq!(sent[sent.len() - 2..], ["arena.close", "arena.open"]);
}

#[test]
fn slabs_of_the_other_end_have_limits() {
    let ends = Ends::new(None);
    let slab = Slab::create(64 << 20).unwrap();
    let open = |number: u64| {
        let fd = slab.fd().try_clone_to_owned().unwrap();
        ends.provider().open_slab(&p::OpenSlabParams { slab: number, bytes: 64 << 20, block: true }, fd)
    };
    (100..104).for_each(|number| open(number).unwrap());
    assert_eq!(open(103).unwrap_err().kind(), ErrorKind::Conflict, "the number is in use");
    assert!(open(104).unwrap_err().message().contains("bytes"));
    let range = p::ArenaRange { slab: 100, offset: 64 };
    let reference = p::ArenaTensorRef { range, name: "x".into(), dtype: "uint8".into(), shape: vec![5] };
    let lease = ends.received(&reference).unwrap();
    let all = p::CloseSlabsParams { slabs: (0..200).collect() };
    ends.provider().close_slabs(&all);
    assert_eq!(lease.bytes().unwrap(), [0; 5], "a closed slab stays for its readers");
    assert_eq!(ends.received(&reference).err().unwrap().kind(), ErrorKind::NotFound);
    (200..203).for_each(|number| open(number).unwrap());
    assert!(open(203).unwrap_err().message().contains("bytes"), "it counts");
    drop(lease);
    open(203).unwrap();
}

#[test]
fn end_that_closes_no_slabs_gets_no_blocks() {
    let ends = Ends::new(Some("arena.close"));
    assert!(lock(&ends.links[0].sent).iter().any(|sent| sent == "arena.close"), "the caller announces it");
    assert!(ends.made((1 << 20) + 1, 1).is_none());
    let (large, _received) = ends.passed(1 << 20, 1);
    assert_eq!(large.range.slab, ends.passed(1000, 1).0.range.slab, "up to 1 MiB lie in the shared slabs");
    // A provider that knows the method answers the announcement once.
    let both = Ends::new(None);
    both.provider().close_slabs(&p::CloseSlabsParams { slabs: Vec::new() });
    assert_eq!(*lock(&both.links[1].sent), ["arena.close"]);
}

#[test]
fn readers_keep_their_tensors_when_the_other_end_has_ended() {
    let mut ends = Ends::new(None);
    let (_, received) = ends.passed(3 << 20, 7);
    drop(ends.provider.take());
    assert_eq!(ends.caller.reserve(9 << 20).err().unwrap().kind(), ErrorKind::Io);
    assert!(received.bytes().unwrap() == vec![7; 3 << 20]);
    drop(received);
}
