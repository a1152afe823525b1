//! Spilled tensors whose storage fails, and spilled tensors that are freed.

use crate::fake_disk::{FakeDisk, SharedDisk, put, spec, store};
use cotensor_core::{ContentHash, ErrorKind};
use cotensor_store::{
    Claim, ComputationStore, EveryVersion, Holder, Key, Lease, LocalStore, ManualClock, MemoryControl, NameFilter,
    TensorSpec, TensorStore,
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

fn key() -> Key {
    Key(ContentHash::of(b"stage"))
}

fn compute(store: &LocalStore, holder: &Holder, names: &[&str]) -> Vec<Lease> {
    let Claim::Compute(ticket) = store.claim(&key(), holder).unwrap() else { panic!("it is computed already") };
    let reserve = |name: &&str| store.reserve(spec(name, 100, Duration::from_secs(1)), holder).unwrap();
    ticket.publish(names.iter().map(reserve).collect()).unwrap()
}

#[test]
fn results_stay_when_reading_them_fails_for_a_time() {
    let (disk, store, holder) = store(100);
    drop(compute(&store, &holder, &["result"]));
    drop(put(&store, &holder, "other", 1).unwrap());
    assert_eq!(store.spilled("result").len(), 1);
    for (failing_restores, is_unreadable) in [(1000, false), (0, true)] {
        disk.failing_restores.store(failing_restores, Ordering::SeqCst);
        disk.unreadable.store(is_unreadable, Ordering::SeqCst);
        // They are computed by the caller, unless that gives up.
        assert!(matches!(store.claim(&key(), &holder).unwrap(), Claim::Compute(_)));
        assert!(store.is_computed(&key()));
    }
    disk.unreadable.store(false, Ordering::SeqCst);
    assert!(matches!(store.claim(&key(), &holder).unwrap(), Claim::Ready(leases) if leases.len() == 1));
    drop(put(&store, &holder, "other", 1).unwrap());
    // A damaged result does not come back.
    disk.damaged.store(true, Ordering::SeqCst);
    assert!(matches!(store.claim(&key(), &holder).unwrap(), Claim::Compute(_)));
    assert!(!store.is_computed(&key()));
}

#[test]
fn spilled_results_stay_when_an_older_result_is_freed() {
    let (_disk, store, holder) = store(300);
    let mut older = compute(&store, &holder, &["a", "b"]).into_iter();
    let older_a = older.next().unwrap();
    drop(older);
    store.remove("b").unwrap();
    drop(compute(&store, &holder, &["a", "b"]));
    drop(put(&store, &holder, "other", 1).unwrap());
    drop(put(&store, &holder, "another", 1).unwrap());
    assert_eq!((store.spilled("").len(), store.is_computed(&key())), (2, true));
    drop(older_a);
    assert!(store.is_computed(&key()));
}
