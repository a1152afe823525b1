//! Budget, eviction and reports.

use super::fixtures::{LARGE, OpenStore, all_are, cached, ends_empty, put, spec};
use crate::CopyReason;
use cotensor_core::testing::until;
use cotensor_core::{ErrorKind, size};

/// Room for the metadata of the few tensors here.
const METADATA: u64 = LARGE as u64 / 16;
/// Room for this many large tensors.
const fn room(tensors: u64) -> u64 {
    tensors * LARGE as u64 + METADATA
}

pub(super) fn budget_is_enforced_and_error_names_holders(make: &dyn Fn(u64) -> OpenStore) {
    let open = make(room(10));
    let (one, other, watcher) = (open(), open(), open());
    let held = put(&*one, cached("held", 7 * LARGE, 1), 1);
    let error = other.reserve(spec("more", 4 * LARGE), &other.holder("m")).expect_err("there is no room");
    assert_eq!(error.kind(), ErrorKind::OverBudget);
    for part in ["more", "writer", &size(7 * LARGE as u64), &size(room(10))] {
        assert!(error.to_string().contains(part), "{part:?} is not in {error}");
    }
    // A reservation counts before it is published, and until it is dropped.
    let reserved = one.reserve(spec("reserved", 3 * LARGE), &one.holder("m")).expect("reserve");
    assert!(other.reserve(spec("more", LARGE), &other.holder("m")).is_err());
    drop(reserved);
    until("it comes back", || other.reserve(spec("more", 3 * LARGE), &other.holder("m")).is_ok());
    assert!(all_are(&held, 1), "what is leased stays");
    assert!(other.reserve(spec("more", 11 * LARGE), &other.holder("m")).is_err(), "more than there will ever be");
    other.remove("held").expect("remove");
    drop((held, one, other));
    ends_empty(&*watcher);
    assert!(watcher.stats().peak_memory_bytes <= room(10));
}

pub(super) fn cheapest_tensor_is_evicted_first(make: &dyn Fn(u64) -> OpenStore) {
    let open = make(room(4));
    let (one, other) = (open(), open());
    for (name, recompute_ms) in [("dear", 9000), ("cheap", 5), ("middle", 500), ("held", 1)] {
        drop(put(&*one, cached(name, LARGE, recompute_ms), 1));
    }
    let held = other.get("held", &other.holder("")).expect("get");
    let left = || other.diagnostics().tensors.into_iter().map(|tensor| tensor.name).collect::<Vec<_>>();
    for expected in [&["dear", "held", "middle"][..], &["dear", "held"], &["held"]] {
        // A released tensor can be evicted once the release has reached the store.
        let room = LARGE * (4 - expected.len());
        until("there is room", || one.reserve(spec("room", room), &one.holder("")).is_ok());
        assert_eq!(left(), expected);
    }
    assert_eq!((other.stats().evictions, other.stats().evicted_bytes), (3, 3 * LARGE as u64));
    assert!(all_are(&held, 1));
}

pub(super) fn reports_count_tensors_copies_and_lookups(make: &dyn Fn(u64) -> OpenStore) {
    let open = make(u64::MAX);
    let (one, other) = (open(), open());
    let made = put(&*one, cached("x", LARGE, 1), 1);
    let found = other.get("x", &other.holder("reader")).expect("get");
    assert!(other.get("nothing", &other.holder("reader")).is_err());
    one.record_copy("x", CopyReason::DeviceTransfer, 10);
    let copied =
        |reason: &str| one.stats().copies.iter().find(|copies| copies.reason == reason).map(|copies| copies.bytes);
    until("copies are counted", || copied("device transfer") == Some(10) && copied("put") == Some(LARGE as u64));
    let stats = other.stats();
    assert_eq!((stats.total_tensors, stats.memory_usage_bytes, stats.memory_usage_mb), (1, LARGE as u64, 1.0));
    assert_eq!((stats.cache_hits, stats.cache_misses), (1, 1));
    let info = other.diagnostics().tensors.remove(0);
    assert_eq!((&*info.name, info.version, &*info.dtype, &info.shape[..]), ("x", 1, "uint8", &[LARGE][..]));
    assert_eq!((info.bytes, &*info.device, &*info.producer, info.cached), (LARGE as u64, "cpu", "suite", true));
    let mut holders: Vec<_> = info.holders.into_iter().collect();
    holders.sort_by_key(|(name, _)| name.ends_with("writer"));
    assert!(holders.len() == 2 && holders.iter().all(|(_, leases)| *leases == 1));
    assert!(holders[0].0.ends_with("reader") && holders[1].0.ends_with("writer"), "{holders:?}");
    let recommended = one.recommendations();
    assert_eq!(recommended.largest_tensors, [("x".to_owned(), LARGE as u64)]);
    assert_eq!(other.optimize().freed_tensors_count, 0, "it is leased");
    drop((made, found));
    until("the tensor is freed", || one.optimize().freed_tensors == ["x"]);
    ends_empty(&*other);
    let key = cotensor_core::ContentHash::of(b"note");
    assert_eq!(one.get_note(&key), None);
    one.put_note(&key, b"a note");
    until("the note is there", || other.get_note(&key).as_deref() == Some(b"a note"));
}
