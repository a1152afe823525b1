//! Blocks: memory of tensors between the small ones and 64 MiB, which their producer uses again.

use crate::support::processes::{Processes, content, settles_empty};
use crate::support::until;
use crate::support::{Running, segments_since, spec};
use cotensor_client::ClientStore;
use cotensor_core::{Device, ErrorKind, Kind, MemoryKind};
use cotensor_store::{CopyReason, Lease, MemoryControl, Retention, StoreReports, TensorSpec, TensorStore};
use std::time::{Duration, Instant};

pub(crate) const KEPT: Retention = Retention::Cached { recompute: Duration::ZERO };
pub(crate) const LEASED: Retention = Retention::WhileLeased;
pub(crate) const BYTES: usize = 600_000;
pub(crate) const MIB: usize = 1 << 20;

pub(crate) fn put(store: &ClientStore, name: &str, bytes: &[u8], retention: Retention) -> cotensor_core::Result<Lease> {
    put_as(store, TensorSpec { retention, ..spec(name, bytes.len()) }, bytes)
}

fn put_as(store: &ClientStore, spec: TensorSpec, bytes: &[u8]) -> cotensor_core::Result<Lease> {
    let mut reservation = store.reserve_to_fill(spec, &store.holder(""))?;
    reservation.write(bytes, CopyReason::Put)?;
    reservation.publish()
}

pub(crate) fn get(store: &ClientStore, name: &str) -> Lease {
    store.get(name, &store.holder("")).unwrap()
}

fn used(running: &Running) -> u64 {
    running.daemon.store().stats().memory_usage_bytes
}

#[test]
fn versions_of_a_name_take_the_same_memory() {
    let running = Running::start(|_| {});
    let (producer, reader) = (running.connect("producer"), running.connect("reader"));
    let before = segments_since(&Default::default());
    let mut known = std::collections::HashSet::new();
    for version in 0..50 {
        let lease = put(&producer, "frame", &content(version, BYTES), KEPT).unwrap();
        assert_eq!(lease.segment().kind(), MemoryKind::Slab);
        drop(lease);
        known.extend(segments_since(&before).into_keys());
        assert_eq!(get(&reader, "frame").bytes().unwrap(), content(version, BYTES));
    }
    // The notification of a free block may come after the next put has begun.
    assert!(known.len() <= 5, "{} segments", known.len());
    running.settles_at(BYTES.next_multiple_of(rustix::param::page_size()) as u64);
}

#[test]
fn memory_of_a_leased_tensor_is_not_used_again() {
    let running = Running::start(|_| {});
    let (producer, reader) = (running.connect("producer"), running.connect("reader"));
    drop(put(&producer, "a", &content(0, BYTES), KEPT).unwrap());
    let held = get(&reader, "a");
    for version in 1..20 {
        drop(put(&producer, "a", &content(version, BYTES), KEPT).unwrap());
        assert_eq!(held.bytes().unwrap(), content(0, BYTES));
    }
    // Also not after its producer has gone.
    drop(producer);
    assert_eq!(held.bytes().unwrap(), content(0, BYTES));
    drop(held);
    assert_eq!(get(&reader, "a").bytes().unwrap(), content(19, BYTES));
    reader.remove("a").unwrap();
    running.settles_at(0);
}

#[test]
fn tensors_in_blocks_are_evicted() {
    let running = Running::start(|config| config.max_memory_bytes = (2 * MIB + (64 << 10)) as u64);
    let producer = running.connect("producer");
    for n in 0..6 {
        drop(put(&producer, &format!("n{n}"), &content(n, MIB), KEPT).unwrap());
        assert!(used(&running) <= 2 * MIB as u64);
    }
    let stats = running.daemon.store().stats();
    assert_eq!((stats.evictions, stats.total_tensors), (4, 2), "{stats:?}");
    assert_eq!(get(&producer, "n5").bytes().unwrap(), content(5, MIB));
}

#[test]
fn tensors_in_blocks_are_spilled_and_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let running = Running::start(|config| {
        config.max_memory_bytes = (2 * MIB + (64 << 10)) as u64;
        config.spill = Some(folder.path().join("spill"));
    });
    let (producer, reader) = (running.connect("producer"), running.connect("reader"));
    for n in 0..6 {
        drop(put(&producer, &format!("n{n}"), &content(n, MIB), KEPT).unwrap());
    }
    for n in 0..6 {
        assert_eq!(get(&reader, &format!("n{n}")).bytes().unwrap(), content(n, MIB), "{n}");
    }
    assert_eq!(running.daemon.store().stats().evictions, 0);
}

#[test]
fn put_beyond_the_budget_fails_and_loses_nothing() {
    let running = Running::start(|config| config.max_memory_bytes = (2 * MIB + (64 << 10)) as u64);
    let producer = running.connect("producer");
    let mut held: Vec<Lease> = (0..2).map(|n| put(&producer, "a", &content(n, MIB), LEASED).unwrap()).collect();
    for _ in 0..3 {
        let error = put(&producer, "b", &content(9, MIB), LEASED).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OverBudget);
        assert!(error.to_string().contains("producer"), "it names the holder: {error}");
    }
    assert!(held.iter().zip(0..).all(|(lease, n)| lease.bytes().unwrap() == content(n, MIB)));
    held.remove(0);
    let again = put(&producer, "b", &content(9, MIB), LEASED).unwrap();
    assert_eq!(again.bytes().unwrap(), content(9, MIB));
}

#[test]
fn weights_sealed_tensors_and_all_of_a_daemon_without_slabs_are_sealed() {
    let is_sealed = |producer: &ClientStore, spec: TensorSpec, bytes: usize, sealed: bool| {
        let holder = producer.holder("producer");
        let mut reservation = match sealed {
            true => producer.reserve_sealed(spec, &holder).unwrap(),
            false => producer.reserve_to_fill(spec, &holder).unwrap(),
        };
        reservation.write(&content(1, bytes), CopyReason::Put).unwrap();
        let lease = reservation.publish().unwrap();
        assert_eq!(lease.bytes().unwrap(), content(1, bytes));
        lease.segment().kind() == MemoryKind::Memfd
    };
    for small_bytes_max in [256 << 10, 0] {
        let running = Running::start(|config| config.small_bytes_max = small_bytes_max);
        let producer = running.connect("producer");
        for bytes in [1, 64, 256 << 10, BYTES] {
            let of_kind = |kind| TensorSpec { kind, ..spec("w", bytes) };
            assert_eq!(is_sealed(&producer, of_kind(Kind::Other), bytes, false), small_bytes_max == 0, "{bytes}");
            assert!(is_sealed(&producer, of_kind(Kind::Other), bytes, true), "{bytes}");
            assert!(is_sealed(&producer, of_kind(Kind::Weight), bytes, false), "{bytes}");
            let holder = producer.holder("producer");
            let in_place = producer.reserve(of_kind(Kind::Weight), &holder).unwrap().publish().unwrap();
            assert_eq!(in_place.segment().kind(), MemoryKind::Memfd, "{bytes}");
        }
    }
}

#[test]
fn blocks_survive_a_takeover_and_are_used_again() {
    let processes = Processes::start();
    let (producer, reader) = (processes.connect("producer"), processes.connect("reader"));
    let held: Vec<Lease> =
        (0..4).map(|n| put(&producer, &format!("n{n}"), &content(n, BYTES), LEASED).unwrap()).collect();
    drop(put(&producer, "kept", &content(7, BYTES), KEPT).unwrap());
    let before = producer.stats().memory_usage_bytes;
    processes.kill_server();
    for (n, lease) in held.iter().enumerate() {
        assert_eq!(get(&reader, lease.name()).bytes().unwrap(), content(n as u64, BYTES));
    }
    assert_eq!(producer.stats().memory_usage_bytes, before, "each block is counted once");
    // The next server tells the producer about free blocks, too.
    let blocks = segments_since(&Default::default());
    drop(held);
    until("the blocks are free", || producer.stats().memory_usage_bytes < before);
    for n in 10..14 {
        let lease = put(&producer, "again", &content(n, BYTES), LEASED).unwrap();
        assert_eq!(get(&reader, "again").bytes().unwrap(), content(n, BYTES));
        drop(lease);
    }
    assert!(segments_since(&blocks).is_empty(), "no new memory");
    assert_eq!(get(&reader, "kept").bytes().unwrap(), content(7, BYTES));
    reader.remove("kept").unwrap();
    drop((producer, reader));
    settles_empty(&processes);
}

#[test]
fn idle_producer_gives_its_blocks_back() {
    let running = Running::start(|_| {});
    let (producer, other) = (running.connect("producer"), running.connect("other"));
    let before = segments_since(&Default::default());
    let held = put(&producer, "held", &content(1, BYTES), LEASED).unwrap();
    drop(put(&producer, "kept", &content(2, 2 * MIB), KEPT).unwrap());
    // The producer does not see this call, and reads nothing.
    other.remove("kept").unwrap();
    // The release of the producer's lease may come later.
    until("the block is ready", || other.stats().ready_bytes == 2 * MIB as u64);
    until("the free block is given back", || segments_since(&before).len() == 1);
    assert_eq!(get(&other, "held").bytes().unwrap(), content(1, BYTES));
    assert_eq!(other.stats().ready_bytes, 0);
    // A later put makes a new one.
    let again = put(&producer, "again", &content(3, 2 * MIB), LEASED).unwrap();
    assert_eq!(again.bytes().unwrap(), content(3, 2 * MIB));
    assert_eq!((held.bytes().unwrap(), segments_since(&before).len()), (&content(1, BYTES)[..], 2));
}

#[test]
fn prefaulted_blocks_stay_until_they_are_used() {
    let running = Running::start(|_| {});
    let (producer, other) = (running.connect("producer"), running.connect("other"));
    let before = segments_since(&Default::default());
    let prefault = |bytes, count| producer.prefault_to_fill(Device::Cpu, bytes, count).unwrap();
    assert_eq!((prefault(2 * MIB, 2), prefault(40 * MIB, 3)), (2, 1), "at most 64 MiB are free");
    assert_eq!(other.stats().ready_bytes, 44 * MIB as u64);
    // Of two lengths: no series, for which further blocks would be made.
    let held =
        [5000, 9000].map(|less| put(&producer, &format!("{less}"), &content(1, 2 * MIB - less), LEASED).unwrap());
    assert_eq!(segments_since(&before).len(), 3, "no new memory");
    assert_eq!(other.stats().ready_bytes, 40 * MIB as u64);
    drop(held);
    until("the used blocks are given back", || {
        other.stats().ready_bytes == 40 * MIB as u64 && segments_since(&before).len() == 1
    });
    // Those of other sizes, and of stores without blocks, are memory of their own.
    assert_eq!((prefault(1000, 7), prefault(100 * MIB, 1)), (7, 1));
    until("the daemon shows sealed memory, too", || other.stats().ready_bytes == 140 * MIB as u64);
}

#[test]
fn memory_of_tensors_that_were_not_published_is_given_back() {
    let running = Running::start(|_| {});
    let (producer, other) = (running.connect("producer"), running.connect("other"));
    let before = segments_since(&Default::default());
    // As a group that fails after its bytes were written.
    let mut reservation = producer.reserve(spec("group", 3 * MIB), &producer.holder("")).unwrap();
    reservation.write(&content(1, 3 * MIB), CopyReason::Put).unwrap();
    drop(reservation);
    until("the daemon shows the memory", || other.stats().ready_bytes == 3 * MIB as u64);
    until("the memory is given back", || segments_since(&before).is_empty());
    until("the daemon shows none", || other.stats().ready_bytes == 0);
}

#[test]
fn next_block_of_a_series_is_made_before_it_is_needed() {
    let running = Running::start(|_| {});
    let (producer, other) = (running.connect("producer"), running.connect("other"));
    let before = segments_since(&Default::default());
    let bytes = content(1, 2 * MIB);
    let put = |n: usize| put(&producer, &format!("n{n}"), &bytes, LEASED).unwrap();
    let mut held = vec![put(0), put(1)];
    assert_eq!(other.stats().ready_bytes, 0, "two tensors are not a series");
    let is_ready = || other.stats().ready_bytes == 2 * MIB as u64;
    // On a busy machine, puts can be too far apart for a series.
    until("the next block is ready", || {
        (0..4).for_each(|_| held.push(put(held.len())));
        let start = Instant::now();
        while !is_ready() && start.elapsed() < Duration::from_secs(1) {
            std::thread::yield_now();
        }
        is_ready()
    });
    let made = segments_since(&before).len();
    assert_eq!(made, held.len() + 1);
    held.push(put(held.len()));
    let bound = held.len() + 1;
    assert!(
        (made..=bound).contains(&segments_since(&before).len()),
        "the tensor has the block, and the next one may be there"
    );
    until("the unused block is given back", || segments_since(&before).len() == held.len());
    // The producer reports it after that.
    until("the daemon counts it no more", || other.stats().ready_bytes == 0);
    assert!(held.iter().all(|lease| lease.bytes().unwrap() == bytes));
}

#[test]
fn threads_that_take_the_last_room_at_once_put_all_their_tensors() {
    let running = Running::start(|_| {});
    let producer = running.connect("producer");
    let together = std::sync::Barrier::new(16);
    let put = |thread: usize| {
        let name = format!("of {thread}");
        let mut bytes = vec![0; 24 * MIB];
        bytes.fill(thread as u8);
        together.wait();
        let lease = put(&producer, &name, &bytes, LEASED).unwrap();
        assert!(lease.bytes().unwrap() == bytes, "{thread}");
        lease
    };
    let put = &put;
    let kinds: Vec<_> = std::thread::scope(|threads| {
        let started: Vec<_> = (0..16).map(|thread| threads.spawn(move || put(thread))).collect();
        let held: Vec<_> = started.into_iter().map(|thread| thread.join().unwrap()).collect();
        held.iter().map(|lease| lease.segment().kind()).collect()
    });
    let blocks = kinds.iter().filter(|kind| **kind == MemoryKind::Slab).count();
    assert_eq!(blocks, 10, "256 MiB of 24 MiB each");
}
