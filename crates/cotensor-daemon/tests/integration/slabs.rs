//! What small tensors cost: slabs grow with what their clients publish, and what is counted is what is held.

use crate::support::processes::{Processes, content, settles_empty};
use crate::support::until;
use crate::support::{Running, spec};
use cotensor_client::ClientStore;
use cotensor_client::protocol::{Empty, Sessions};
use cotensor_core::ErrorKind;
use cotensor_daemon::METADATA_BYTES;
use cotensor_store::{Lease, Retention, StoreReports, TensorStore};
use rustix::param::page_size;
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
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

/// The segments that this process, in which daemon and clients are, has a descriptor of, by their inodes: their lengths, and
/// the bytes of memory that they take.
fn segments() -> HashMap<u64, (u64, u64)> {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let memory = links.filter(|link| {
        std::fs::read_link(link.path()).is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:cotensor "))
    });
    let found = memory.filter_map(|link| std::fs::metadata(link.path()).ok());
    found.map(|it| (it.ino(), (it.len(), it.blocks() * 512))).collect()
}

/// Of those that are not among `before`, how many there are, the longest, and lengths and memory of all together.
fn since(before: &HashMap<u64, (u64, u64)>) -> (usize, u64, u64, u64) {
    let mut now = segments();
    now.retain(|inode, _| !before.contains_key(inode));
    let longest = now.values().map(|(len, _)| *len).max().unwrap_or(0);
    (now.len(), longest, now.values().map(|(len, _)| len).sum(), now.values().map(|(_, held)| held).sum())
}

fn used(running: &Running) -> u64 {
    running.daemon.store().stats().memory_usage_bytes
}

#[test]
fn clients_that_publish_little_leave_little() {
    const CLIENTS: usize = 160;
    let running = Running::start(|_| {});
    let before = segments();
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
    assert_eq!(since(&before), (CLIENTS, each, used(&running), used(&running)), "what is counted is held");
    for client in 0..CLIENTS {
        reader.remove(&format!("t{client}")).unwrap();
    }
    running.settles_at(0);
}

#[test]
fn a_client_that_publishes_much_has_few_slabs_for_it() {
    const BYTES: usize = 100_000;
    const TENSORS: usize = 400;
    let running = Running::start(|_| {});
    let before = segments();
    let store = running.connect("one");
    let mut held: Vec<Lease> = (0..TENSORS).map(|n| put(&store, &n.to_string(), &[1; BYTES], KEPT).unwrap()).collect();
    let (slabs, longest, len, memory) = since(&before);
    let total = (BYTES * TENSORS) as u64;
    // Doublings up to the longest, and then as many of these as it takes.
    assert!(longest <= SLAB_BYTES_MAX && slabs as u64 <= 8 + total.div_ceil(SLAB_BYTES_MAX), "{slabs} slabs");
    assert!(used(&running) < total + total / 10 + SLAB_BYTES_MAX, "{} bytes for {total}", used(&running));
    assert_eq!((len, memory), (used(&running), used(&running)), "what is counted is held");
    // A session's slabs outlive it for as long as something is in them.
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
fn small_tensors_fit_as_long_as_there_is_room() {
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
    // The last slab may have taken the room of what would be known about the tensors in it.
    assert!(held.len() as u64 >= pages / 1024 / 2, "{} tensors: {error}", held.len());
}

#[test]
fn empty_tensors_have_places_of_their_own() {
    let running = Running::start(|_| {});
    let (one, other) = (running.connect("one"), running.connect("other"));
    let made = put(&one, "kept", &[7; 4096], Retention::WhileLeased).unwrap();
    let kept = other.get("kept", &other.holder("")).unwrap();
    let empty: Vec<Lease> =
        (0..1000).map(|n| put(&one, &format!("empty {n}"), b"", Retention::WhileLeased).unwrap()).collect();
    drop(made);
    let next: Vec<Lease> =
        (0..10).map(|n| put(&one, &format!("next {n}"), &[8; 4096], Retention::WhileLeased).unwrap()).collect();
    assert!(kept.bytes().unwrap().iter().all(|&byte| byte == 7), "another client leases it still");
    assert!(other.get("empty 999", &other.holder("")).unwrap().bytes().unwrap().is_empty());
    drop((kept, empty, next, one));
    running.settles_at(0);
}

#[test]
fn slabs_of_all_lengths_are_counted_once_over_a_takeover() {
    let processes = Processes::start();
    let (passing, staying) = (processes.connect("passing"), processes.connect("staying"));
    drop(put(&passing, "passing", &content(0, 48), KEPT).unwrap());
    drop(passing);
    let sizes = [48, 5000, 70_000, 200_000];
    let held: Vec<Lease> = (0..40)
        .map(|n| put(&staying, &format!("n{n}"), &content(n, sizes[n as usize % 4]), Retention::WhileLeased).unwrap())
        .collect();
    let before = staying.stats().memory_usage_bytes;
    processes.kill_server();
    let reader = processes.connect("reader");
    for (n, lease) in held.iter().enumerate() {
        let found = reader.get(lease.name(), &reader.holder("")).unwrap();
        assert_eq!(found.bytes().unwrap(), content(n as u64, sizes[n % 4]));
    }
    assert_eq!(reader.get("passing", &reader.holder("")).unwrap().bytes().unwrap(), content(0, 48));
    assert_eq!(staying.stats().memory_usage_bytes, before);
    // Room that there was is there still: nothing new is made for what takes the place of what goes.
    drop(held);
    drop(put(&staying, "after", &content(50, 48), Retention::WhileLeased).unwrap());
    assert_eq!(staying.stats().memory_usage_bytes, before);
    reader.remove("passing").unwrap();
    drop((staying, reader));
    settles_empty(&processes);
}

#[test]
fn a_producer_that_is_idle_is_not_left_for_ranges_that_became_free() {
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
    let memory = || segments().values().map(|(_, bytes)| bytes).sum::<u64>();
    // Those of a round go all at once, and the producer says nothing meanwhile.
    drop(fill(0));
    until("all is given back", || running.daemon.store().stats().total_tensors == 0);
    let used = memory();
    for round in 1..3 {
        drop(fill(round));
        until("all is given back", || running.daemon.store().stats().total_tensors == 0);
    }
    assert_eq!(session(), before, "it was not ended");
    assert!(
        memory() <= used + SLAB_BYTES_MAX,
        "{} bytes, {used} after the first round: ranges are used again",
        memory()
    );
}
