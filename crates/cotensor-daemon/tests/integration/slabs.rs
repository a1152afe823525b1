//! Slabs: they grow with the published bytes, and the charged bytes are the bytes in memory.

use crate::support::processes::{Processes, content, settles_empty};
use crate::support::until;
use crate::support::{Running, segments_since, spec};
use cotensor_client::ClientStore;
use cotensor_client::protocol::{Empty, Sessions};
use cotensor_core::ErrorKind;
use cotensor_daemon::METADATA_BYTES;
use cotensor_store::{Lease, Retention, StoreReports, TensorStore};
use rustix::param::page_size;
use std::collections::HashMap;
use std::time::Duration;

const KEPT: Retention = Retention::Cached { recompute: Duration::ZERO };
const SLAB_BYTES_MIN: usize = 8 << 10;
const SLAB_BYTES_MAX: u64 = 4 << 20;

/// Bytes in whole pages.
fn pages(bytes: usize) -> u64 {
    bytes.next_multiple_of(page_size()) as u64
}

fn put(store: &ClientStore, name: &str, bytes: &[u8], retention: Retention) -> cotensor_core::Result<Lease> {
    let spec = cotensor_store::TensorSpec { retention, ..spec(name, bytes.len()) };
    let mut reservation = store.reserve(spec, &store.holder(""))?;
    reservation.write(bytes, cotensor_store::CopyReason::Put)?;
    reservation.publish()
}

/// Of the segments that are not in `before`: their number, the largest length, and the sums of lengths and memory.
fn since(before: &HashMap<u64, (u64, u64)>) -> (usize, u64, u64, u64) {
    let now = segments_since(before);
    let longest = now.values().map(|(len, _)| *len).max().unwrap_or(0);
    (now.len(), longest, now.values().map(|(len, _)| len).sum(), now.values().map(|(_, held)| held).sum())
}

fn used(running: &Running) -> u64 {
    running.daemon.store().stats().memory_usage_bytes
}

#[test]
fn clients_with_one_small_tensor_take_one_small_slab() {
    const CLIENTS: usize = 160;
    let running = Running::start(|_| {});
    let before = segments_since(&HashMap::new());
    for client in 0..CLIENTS {
        let store = running.connect("put");
        drop(put(&store, &format!("t{client}"), &[client as u8; 48], KEPT).unwrap());
    }
    let each = pages(SLAB_BYTES_MIN);
    running.settles_at(CLIENTS as u64 * each);
    if page_size() <= SLAB_BYTES_MIN {
        assert!(used(&running) < 2 << 20, "{} bytes", used(&running));
    }
    let reader = running.connect("reader");
    for client in 0..CLIENTS {
        let lease = reader.get(&format!("t{client}"), &reader.holder("")).unwrap();
        assert_eq!(lease.bytes().unwrap(), [client as u8; 48]);
    }
    assert_eq!(since(&before), (CLIENTS, each, used(&running), used(&running)), "charged bytes are in memory");
    for client in 0..CLIENTS {
        reader.remove(&format!("t{client}")).unwrap();
    }
    running.settles_at(0);
}

#[test]
fn client_with_many_small_tensors_has_few_slabs() {
    const BYTES: usize = 100_000;
    const TENSORS: usize = 400;
    let running = Running::start(|_| {});
    let before = segments_since(&HashMap::new());
    let store = running.connect("one");
    let mut held: Vec<Lease> = (0..TENSORS).map(|n| put(&store, &n.to_string(), &[1; BYTES], KEPT).unwrap()).collect();
    let (slabs, longest, len, memory) = since(&before);
    let total = (BYTES * TENSORS) as u64;
    // Slabs double up to the largest length, which further slabs have.
    assert!(longest <= SLAB_BYTES_MAX && slabs as u64 <= 8 + total.div_ceil(SLAB_BYTES_MAX), "{slabs} slabs");
    assert!(used(&running) < total + total / 10 + SLAB_BYTES_MAX, "{} bytes for {total}", used(&running));
    assert_eq!((len, memory), (used(&running), used(&running)), "charged bytes are in memory");
    // A slab outlives its session while it contains a tensor.
    held.truncate(1);
    for n in 1..TENSORS {
        store.remove(&n.to_string()).unwrap();
    }
    drop((held, store));
    running.settles_at(pages(BYTES));
    running.connect("other").remove("0").unwrap();
    running.settles_at(0);
    assert_eq!(since(&before).0, 0);
}

#[test]
fn small_tensors_fill_the_budget() {
    let (pages, metadata) = (10 * page_size() as u64, 10 * page_size() as u64 / 1024 * (METADATA_BYTES + 64));
    let running = Running::start(|config| config.max_memory_bytes = pages + metadata);
    let store = running.connect("one");
    let mut held = Vec::new();
    let error = loop {
        match put(&store, &held.len().to_string(), &[2; 1024], Retention::WhileLeased) {
            Ok(lease) => held.push(lease),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::OverBudget);
    let stats = running.daemon.store().stats();
    assert!(stats.memory_usage_bytes + stats.metadata_bytes <= pages + metadata, "{stats:?}");
    // The last slab may have taken the budget that its tensors need for metadata.
    assert!(held.len() as u64 >= pages / 1024 / 2, "{} tensors: {error}", held.len());
}

#[test]
fn empty_tensors_have_distinct_offsets() {
    let running = Running::start(|_| {});
    let (one, other) = (running.connect("one"), running.connect("other"));
    let made = put(&one, "kept", &[7; 4096], Retention::WhileLeased).unwrap();
    let kept = other.get("kept", &other.holder("")).unwrap();
    let empty: Vec<Lease> =
        (0..1000).map(|n| put(&one, &format!("empty {n}"), b"", Retention::WhileLeased).unwrap()).collect();
    drop(made);
    let next: Vec<Lease> =
        (0..10).map(|n| put(&one, &format!("next {n}"), &[8; 4096], Retention::WhileLeased).unwrap()).collect();
    assert!(kept.bytes().unwrap().iter().all(|&byte| byte == 7), "another client still leases it");
    assert!(other.get("empty 999", &other.holder("")).unwrap().bytes().unwrap().is_empty());
    drop((kept, empty, next, one));
    running.settles_at(0);
}

#[test]
fn slabs_are_charged_once_after_a_takeover() {
    let processes = Processes::start();
    let (released, connected) = (processes.connect("released"), processes.connect("connected"));
    drop(put(&released, "released", &content(0, 48), KEPT).unwrap());
    drop(released);
    let sizes = [48, 5000, 70_000, 200_000];
    let held: Vec<Lease> = (0..40)
        .map(|n| put(&connected, &format!("n{n}"), &content(n, sizes[n as usize % 4]), Retention::WhileLeased).unwrap())
        .collect();
    let before = connected.stats().memory_usage_bytes;
    processes.kill_server();
    let reader = processes.connect("reader");
    for (n, lease) in held.iter().enumerate() {
        let found = reader.get(lease.name(), &reader.holder("")).unwrap();
        assert_eq!(found.bytes().unwrap(), content(n as u64, sizes[n % 4]));
    }
    assert_eq!(reader.get("released", &reader.holder("")).unwrap().bytes().unwrap(), content(0, 48));
    assert_eq!(connected.stats().memory_usage_bytes, before);
    // Free ranges are reused: the next tensor needs no new slab.
    drop(held);
    drop(put(&connected, "after", &content(50, 48), Retention::WhileLeased).unwrap());
    assert_eq!(connected.stats().memory_usage_bytes, before);
    reader.remove("released").unwrap();
    drop((connected, reader));
    settles_empty(&processes);
}

#[test]
fn idle_producer_stays_connected_while_ranges_are_freed() {
    const COUNT: usize = 6000;
    let running = Running::start(|_| {});
    let (idle, reader) = (running.connect("idle"), running.connect("reader"));
    let session = || {
        let sessions = reader.request::<Sessions>(&Empty {}).unwrap().sessions;
        sessions.iter().find(|session| session.client.starts_with("idle")).map(|session| session.session)
    };
    let before = session();
    let content = |index: usize| [index as u8; 100];
    let fill = |round: usize| {
        let made: Vec<_> = (0..COUNT)
            .map(|index| put(&idle, &format!("{index}"), &content(index + round), Retention::WhileLeased).unwrap())
            .collect();
        let read: Vec<_> = made.iter().map(|lease| reader.lease(lease.id(), &reader.holder("")).unwrap()).collect();
        assert!(read.iter().enumerate().all(|(index, lease)| lease.bytes().unwrap() == content(index + round)));
        read
    };
    let memory = || segments_since(&HashMap::new()).values().map(|(_, bytes)| bytes).sum::<u64>();
    // All tensors of a round are released at once, while the producer makes no call.
    drop(fill(0));
    until("all tensors are freed", || running.daemon.store().stats().total_tensors == 0);
    let used = memory();
    for round in 1..3 {
        drop(fill(round));
        until("all tensors are freed", || running.daemon.store().stats().total_tensors == 0);
    }
    assert_eq!(session(), before, "the session was not ended");
    assert!(memory() <= used + SLAB_BYTES_MAX, "{} bytes, {used} after the first round: ranges are reused", memory());
}

#[test]
fn idle_producer_gives_its_empty_slabs_back() {
    const EACH: usize = 256 << 10;
    let running = Running::start(|_| {});
    let producer = running.connect("producer");
    let held = put(&producer, "held", &content(1, EACH), Retention::WhileLeased).unwrap();
    let many: Vec<Lease> = (0..100)
        .map(|n| put(&producer, &format!("n{n}"), &content(n, EACH), Retention::WhileLeased).unwrap())
        .collect();
    assert!(used(&running) >= 100 * EACH as u64);
    drop(many);
    until("the slabs are given back", || used(&running) <= 2 * SLAB_BYTES_MAX);
    assert_eq!(held.bytes().unwrap(), content(1, EACH));
    let again = put(&producer, "again", &content(2, EACH), Retention::WhileLeased).unwrap();
    assert_eq!(again.bytes().unwrap(), content(2, EACH));
    drop((held, again, producer));
    running.settles_at(0);
}
