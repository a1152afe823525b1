//! Metadata counts in the budget: names, records, journal entries and leases take more memory than tiny tensors.

use crate::support::processes::{Processes, put as publish, settles_empty};
use crate::support::until;
use crate::support::{Running, spec};
use cotensor_client::ClientStore;
use cotensor_core::{ContentHash, DType, Device, ErrorKind};
use cotensor_daemon::METADATA_BYTES;
use cotensor_store::backend::{DIMENSION_BYTES, TEXT_COPIES};
use cotensor_store::{
    BlobSource, BlobSpec, BlobStore, CopyReason, Lease, Retention, Stats, StoreReports, TensorSpec, TensorStore,
};
use std::time::Duration;

const KEPT: Retention = Retention::Cached { recompute: Duration::ZERO };
const MAX: u64 = 1 << 20;
const TINY: [u8; 64] = [7; 64];

fn put(store: &ClientStore, number: usize, retention: Retention) -> cotensor_core::Result<Lease> {
    let spec = TensorSpec { retention, ..spec(&format!("tiny {number}"), TINY.len()) };
    let mut reservation = store.reserve(spec, &store.holder(""))?;
    reservation.write(&TINY, CopyReason::Put)?;
    reservation.publish()
}

/// The metadata bytes of tensors with these names.
fn metadata<'a>(names: impl IntoIterator<Item = &'a str>) -> u64 {
    let each = |name: &str| METADATA_BYTES + DIMENSION_BYTES + TEXT_COPIES * (name.len() + "test".len()) as u64;
    names.into_iter().map(each).sum()
}

#[test]
fn metadata_that_is_no_json_object_is_refused() {
    let running = Running::start(|_| {});
    let store = running.connect("one");
    for metadata in ["", "[1]", "{", "1", "{\"a\":1} 2"] {
        let spec = TensorSpec { metadata: Some(metadata.into()), ..spec("x", 1 << 20) };
        let error = store.reserve(spec, &store.holder("")).unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::Invalid, Some("metadata")), "{metadata}");
    }
    let spec = TensorSpec { metadata: Some("{\"a\":[{}]}".into()), ..spec("x", 1 << 20) };
    assert!(store.reserve(spec, &store.holder("")).is_ok());
}

/// Fills blobs with zeros.
struct Zeros;

impl BlobSource for Zeros {
    fn fill(&mut self, _: usize, target: &mut [u8]) -> cotensor_core::Result<()> {
        target.fill(0);
        Ok(())
    }
}

fn blob(metadata: &str) -> BlobSpec {
    BlobSpec {
        hash: ContentHash::of(&[0; 5000]),
        dtype: DType::U8,
        shape: vec![5000],
        device: Device::Cpu,
        producer: "test".to_owned(),
        label: "w".to_owned(),
        metadata: Some(metadata.into()),
    }
}

#[test]
fn metadata_of_blobs_counts_and_outlives_the_server() {
    const METADATA: &str = r#"{"scheme":"search","relative_error":0.09}"#;
    let processes = Processes::start();
    let one = processes.connect("one");
    for metadata in ["", "[1]", "{\"a\":1} 2"] {
        let error = one.blobs(&[blob(metadata)], &mut Zeros, &one.holder("")).unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::Invalid, Some("metadata")), "{metadata}");
    }
    let lease = one.blobs(&[blob(METADATA)], &mut Zeros, &one.holder("")).unwrap().remove(0);
    let counted = metadata([lease.name()]) + TEXT_COPIES * METADATA.len() as u64;
    assert_eq!(one.stats().metadata_bytes, counted);
    processes.kill_server();
    let two = processes.connect("two");
    let other = two.blobs(&[blob("{}")], &mut Zeros, &two.holder("")).unwrap().remove(0);
    assert_eq!((other.id(), other.metadata()), (lease.id(), Some(METADATA)));
    assert_eq!(two.stats().metadata_bytes, counted);
}

fn counted(stats: &Stats) -> u64 {
    stats.memory_usage_bytes + stats.metadata_bytes
}

#[test]
fn tiny_tensors_are_refused_when_their_metadata_fills_the_budget() {
    let running = Running::start(|config| config.max_memory_bytes = MAX);
    let store = running.connect("tiny");
    let mut held = Vec::new();
    let error = loop {
        match put(&store, held.len(), Retention::WhileLeased) {
            Ok(lease) => held.push(lease),
            Err(error) => break error,
        }
        assert!(held.len() as u64 * METADATA_BYTES <= MAX, "{} tensors", held.len());
    };
    assert_eq!(error.kind(), ErrorKind::OverBudget);
    assert!(error.message().contains("metadata of"), "{error}");
    let stats = store.stats();
    assert_eq!(stats.metadata_bytes, metadata(held.iter().map(Lease::name)));
    assert!(counted(&stats) <= MAX, "{stats:?}");
    assert!(held.iter().all(|lease| lease.bytes() == Some(&TINY[..])));
    let names = held.len();
    held.truncate(names / 2);
    until("the budget has room again", || put(&store, names, Retention::WhileLeased).is_ok());
    drop((held, store));
    running.settles_at(0);
    until("the metadata is freed", || running.daemon.store().stats().metadata_bytes == 0);
}

#[test]
fn unleased_tiny_tensors_are_evicted_for_metadata() {
    let running = Running::start(|config| config.max_memory_bytes = MAX);
    let store = running.connect("tiny");
    let leased = put(&store, 0, KEPT).unwrap();
    let count = 3 * (MAX / METADATA_BYTES) as usize;
    for number in 1..count {
        // Dropped leases are released asynchronously.
        until("the budget has room", || put(&store, number, KEPT).is_ok());
        if number % 100 == 0 {
            assert!(counted(&running.daemon.store().stats()) <= MAX);
        }
    }
    let (stats, reader) = (store.stats(), running.connect("reader"));
    assert!(stats.evictions > 0 && stats.total_tensors < count, "{stats:?}");
    let get = |number: usize| reader.get(&format!("tiny {number}"), &reader.holder(""));
    assert_eq!(get(count - 1).unwrap().bytes(), Some(&TINY[..]));
    assert_eq!(get(1).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!((get(0).unwrap().id(), leased.bytes()), (leased.id(), Some(&TINY[..])));
}

#[test]
fn large_tensors_are_evicted_before_tensors_of_an_open_slab() {
    let running = Running::start(|config| config.max_memory_bytes = 8 * MAX);
    let store = running.connect("both");
    drop(put(&store, 0, KEPT).unwrap());
    let large = |name: &str| {
        let bytes = 4 * MAX as usize;
        let reservation = store.reserve(TensorSpec { retention: KEPT, ..spec(name, bytes) }, &store.holder(""));
        reservation.and_then(|reservation| reservation.publish()).map(drop)
    };
    large("older").unwrap();
    until("the lease of the large tensor is released", || large("newer").is_ok());
    assert!(store.get("tiny 0", &store.holder("")).is_ok());
    assert!(store.get("older", &store.holder("")).is_err());
}

#[test]
fn metadata_of_spilled_tensors_counts_also_after_a_takeover() {
    const TENSORS: u64 = 5;
    let mib = 1 << 20;
    let max = 3 * mib as u64 + (16 << 10);
    let processes = Processes::start_with(|folder| vec![max.to_string().into(), folder.join("spill").into()]);
    let one = processes.connect("one");
    for number in 0..TENSORS {
        drop(publish(&one, &number.to_string(), &vec![number as u8; mib], KEPT));
    }
    let settled = |store: &ClientStore| {
        let stats = store.stats();
        stats.spilled_now == 2
            && stats.total_tensors == 3
            && stats.metadata_bytes == metadata(["0", "1", "2", "3", "4"])
    };
    until("two tensors are spilled", || settled(&one));
    processes.kill_server();
    let two = processes.connect("two");
    assert!(settled(&two), "{:?}", two.stats());
    drop(two.get("0", &two.holder("")).unwrap());
    until("one tensor is restored and another is spilled", || settled(&two));
    (0..TENSORS).for_each(|number| two.remove(&number.to_string()).unwrap());
    drop((one, two));
    settles_empty(&processes);
}
