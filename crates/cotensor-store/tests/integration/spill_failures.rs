//! Spilled tensors whose storage fails, and spilled tensors that are freed.

use crate::fake_disk::{FakeDisk, SharedDisk, put, spec, store};
use cotensor_core::ErrorKind;
use cotensor_store::{
    EveryVersion, Holder, LocalStore, ManualClock, MemoryControl, NameFilter, TensorSpec, TensorStore,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

#[test]
fn spilled_version_is_removed_by_its_id() {
    let (disk, store, holder) = store(100);
    let first = put(&store, &holder, "a", 1).unwrap().id();
    let newest = put(&store, &holder, "a", 2).unwrap().id();
    drop(put(&store, &holder, "b", 3).unwrap());
    assert_eq!(store.spilled("")[0].tensor.id, newest);
    assert_eq!(store.remove_version("a", Some(first)).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(store.has(newest));
    store.remove_version("a", Some(newest)).unwrap();
    assert!(!store.has(newest) && disk.segments.lock().unwrap().is_empty());
}

#[test]
fn spilled_tensor_is_freed_when_its_time_has_passed() {
    let (clock, disk) = (Arc::new(ManualClock::default()), Arc::new(FakeDisk::default()));
    let store = LocalStore::builder().max_memory_bytes(100).spill(Arc::new(SharedDisk(Arc::clone(&disk))));
    let store = store.clock(Arc::clone(&clock) as Arc<_>).build();
    let holder = store.holder("m");
    let keep_for = Some(Duration::from_secs(600));
    let kept = TensorSpec { keep_for, ..spec("kept", 100, Duration::ZERO) };
    let id = store.reserve(kept, &holder).unwrap().publish().unwrap().id();
    drop(put(&store, &holder, "other", 1).unwrap());
    assert_eq!((store.spilled("")[0].tensor.id, store.freed_in(id)), (id, keep_for));
    clock.advance(Duration::from_secs(600));
    store.free_due();
    assert!(!store.has(id) && disk.segments.lock().unwrap().is_empty());
}

#[test]
fn optimize_runs_where_the_storage_may_block() {
    let (disk, store, holder) = store(100);
    drop(put(&store, &holder, "a", 1).unwrap());
    // Another thread may spill at the time, and optimize waits for it.
    let before = disk.blocking_calls.load(Ordering::SeqCst);
    assert_eq!(store.optimize().freed_tensors, ["a"]);
    assert_eq!(disk.blocking_calls.load(Ordering::SeqCst), before + 1);
}

/// A queue that has leased two versions of "x", of which the first is superseded, and an unleased "a". The memory is full.
fn full_store_with_queued_versions() -> (Arc<FakeDisk>, Arc<LocalStore>, Holder) {
    let (disk, store, holder) = store(300);
    let every = EveryVersion::new(NameFilter::Name("x".to_owned()));
    store.open_versions(every, &store.holder("reader"), None).unwrap();
    for (name, value) in [("x", 1), ("x", 2), ("a", 3)] {
        drop(put(&store, &holder, name, value).unwrap());
    }
    disk.full.store(true, Ordering::SeqCst);
    (disk, store, holder)
}

#[test]
fn failed_spill_takes_the_versions_of_queues() {
    let (_disk, store, holder) = full_store_with_queued_versions();
    let c = put(&store, &holder, "c", 4).unwrap();
    for (name, value) in [("x", 2), ("a", 3)] {
        assert_eq!(store.get(name, &holder).unwrap().bytes().unwrap(), [value; 100], "{name}");
    }
    // The other version of the queue is given up, and can be spilled no more than "a".
    let error = put(&store, &holder, "d", 5).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OverBudget);
    assert!(error.message().contains("no space left"), "{error}");
    drop(c);
}

#[test]
fn shedding_takes_the_versions_of_queues_when_a_spill_fails() {
    let (_disk, store, holder) = full_store_with_queued_versions();
    assert!(store.shed_until(&mut || store.memory_usage_bytes() < 300).unwrap());
    assert_eq!(store.get("a", &holder).unwrap().bytes().unwrap(), [3; 100]);
}
