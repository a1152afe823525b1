//! One caller: versions, views, budget, refusals, private tensors and reports.

use cotensor_core::{ContentHash, DType, Device, ErrorKind, Kind, Slice};
use cotensor_store::{
    Claim, ComputationStore, CopyReason, Holder, Key, Lease, LocalStore, ManualClock, MemoryControl, Retention,
    SharingConfig, StoreReports, TensorSpec, TensorStore,
};
use std::sync::Arc;
use std::time::Duration;

fn spec(name: &str, shape: &[usize], recompute_ms: u64) -> TensorSpec {
    TensorSpec {
        device: Device::Cpu,
        name: name.to_owned(),
        dtype: DType::F32,
        shape: shape.to_vec(),
        kind: Kind::TextEmbedding,
        space: None,
        producer: "bert".to_owned(),
        retention: Retention::Cached { recompute: Duration::from_millis(recompute_ms) },
        provenance: None,
        keep_for: None,
        metadata: None,
        members: None,
    }
}

fn put(store: &LocalStore, spec: TensorSpec, holder: &Holder, values: &[f32]) -> Lease {
    let mut reservation = store.reserve(spec, holder).unwrap();
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
    reservation.write(&bytes, CopyReason::Put).unwrap();
    reservation.publish().unwrap()
}

#[test]
fn ids_of_one_store_name_no_tensor_of_another() {
    // As that of a daemon and of the next one, which has none of its tensors.
    let stores = [(); 2].map(|()| LocalStore::builder().build());
    let [first, second] =
        stores.each_ref().map(|store| put(store, spec("x", &[1], 1), &store.holder("m"), &[1.0]).id());
    assert_eq!((first.version, second.version), (1, 1));
    assert_ne!(first.name_id, second.name_id);
    assert_eq!(stores[1].lease(first, &stores[1].holder("m")).unwrap_err().kind(), ErrorKind::NotFound);
    // Numbers in JSON are exact up to 2^53.
    let last = LocalStore::builder().seed(u64::MAX).build();
    assert!(put(&last, spec("x", &[1], 1), &last.holder("m"), &[1.0]).id().name_id < (1 << 53) - (1 << 51));
}

#[test]
fn leased_version_outlives_its_successor() {
    let store = LocalStore::builder().build();
    let holder = store.holder("m");
    let first = put(&store, spec("x", &[2], 1), &holder, &[1.0, 2.0]);
    let second = put(&store, spec("x", &[2], 1), &holder, &[3.0, 4.0]);
    assert_eq!((first.id().name_id, first.id().version), (second.id().name_id, 1));
    assert_eq!(second.id().version, 2);
    assert_eq!(first.typed::<f32>().unwrap(), [1.0, 2.0]);
    assert_eq!(store.get("x", &holder).unwrap().id(), second.id());
    let id = first.id();
    assert_eq!(store.lease(id, &holder).unwrap().typed::<f32>().unwrap(), [1.0, 2.0]);
    drop(first);
    assert_eq!(store.lease(id, &holder).unwrap_err().kind(), ErrorKind::NotFound);
    store.remove("x").unwrap();
    assert_eq!(store.get("x", &holder).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(store.remove("x").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(second.typed::<f32>().unwrap(), [3.0, 4.0]);
    drop(second);
    assert_eq!(store.stats().memory_usage_bytes, 0);
}

#[test]
fn views_share_and_keep_the_memory() {
    let store = LocalStore::builder().build();
    let holder = store.holder("m");
    let values: Vec<f32> = (0..12u8).map(f32::from).collect();
    let lease = put(&store, spec("x", &[3, 4], 1), &holder, &values);
    let rows = lease.view(&[Slice { start: 1, len: 2, step: 1 }, Slice { start: 0, len: 4, step: 1 }]).unwrap();
    assert_eq!(rows.typed::<f32>().unwrap(), &values[4..]);
    let cell = rows.view(&[Slice { start: 1, len: 1, step: 1 }, Slice { start: 2, len: 1, step: 1 }]).unwrap();
    assert_eq!(cell.typed::<f32>().unwrap(), [10.0]);
    let column = lease.view(&[Slice { start: 0, len: 3, step: 1 }, Slice { start: 1, len: 1, step: 1 }]).unwrap();
    assert_eq!(column.typed::<f32>().unwrap_err().kind(), ErrorKind::Invalid, "strided");
    assert_eq!(column.bytes().unwrap().len(), 9 * 4, "gaps included");
    let start = lease.bytes().unwrap().as_ptr() as usize;
    drop((lease, rows, column));
    assert_eq!(store.optimize().freed_tensors_count, 0, "the view of a view holds it");
    assert_eq!(cell.bytes().unwrap().as_ptr() as usize, start + 10 * 4);
    drop(cell);
    assert_eq!(store.optimize().freed_tensors, ["x"]);
}

#[test]
fn over_budget_error_names_holders() {
    let store = LocalStore::builder().max_memory_bytes(400).build();
    let (big, small) = (store.holder("big model"), store.holder("small model"));
    let held = put(&store, spec("a", &[50], 1), &big, &[0.0; 50]);
    let other = put(&store, spec("b", &[20], 1), &small, &[0.0; 20]);
    let unpublished = store.reserve(spec("c", &[10], 1), &small).unwrap();
    let message = store.reserve(spec("d", &[21], 1), &small).unwrap_err();
    assert_eq!(message.kind(), ErrorKind::OverBudget);
    let text = message.to_string();
    for part in [
        "84 B do not fit the budget of 400 B",
        "320 B are in use",
        "big model holds 200 B",
        "small model holds 80 B",
        "40 B",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    assert_eq!(store.reserve_private(spec("d", &[21], 1), &small).unwrap_err().kind(), ErrorKind::OverBudget);
    drop(unpublished);
    drop((held, other));
    // No tensor is evicted when all evictable tensors would not make enough room.
    assert_eq!(store.reserve(spec("e", &[101], 1), &small).unwrap_err().kind(), ErrorKind::OverBudget);
    assert_eq!((store.stats().total_tensors, store.stats().evictions), (2, 0));
    assert_eq!(store.reserve(spec("e", &[usize::MAX, 2], 1), &small).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn eviction_order_is_recompute_time_then_last_use() {
    let clock = Arc::new(ManualClock::default());
    let store = LocalStore::builder().max_memory_bytes(400).clock(Arc::clone(&clock) as _).build();
    let holder = store.holder("m");
    for (name, recompute_ms) in [("dear", 900), ("old", 5), ("used", 5), ("new", 5)] {
        put(&store, spec(name, &[25], recompute_ms), &holder, &[0.0; 25]);
        clock.advance(Duration::from_secs(1));
    }
    store.get("old", &holder).unwrap();
    let left = || store.diagnostics().tensors.into_iter().map(|tensor| tensor.name).collect::<Vec<_>>();
    for expected in [&["dear", "new", "old"][..], &["dear", "old"], &["dear"], &[]] {
        let freed = 100 * (4 - expected.len());
        drop(store.reserve_private(spec("room", &[freed / 4], 0), &holder).unwrap());
        assert_eq!(left(), expected);
    }
    assert_eq!((store.stats().evictions, store.stats().evicted_bytes), (4, 400));
}

#[test]
fn eviction_order_uses_recompute_time_per_byte() {
    let store = LocalStore::builder().max_memory_bytes(1000).build();
    let holder = store.holder("m");
    // Per byte: 20, 50, 25 and 10 microseconds. Neither the time alone nor the size alone gives that order.
    for (name, elements, recompute_ms) in [("a", 50, 4), ("b", 10, 2), ("c", 100, 10), ("d", 20, 1)] {
        put(&store, spec(name, &[elements], recompute_ms), &holder, &vec![0.0; elements]);
    }
    let mut gone = Vec::new();
    for room in [300, 400, 600, 1000] {
        drop(store.reserve_private(spec("room", &[room / 4], 0), &holder).unwrap());
        let left: Vec<_> = store.diagnostics().tensors.into_iter().map(|tensor| tensor.name).collect();
        gone.extend(["a", "b", "c", "d"].iter().filter(|&&name| !left.contains(&name.to_owned())).copied());
        gone.dedup();
    }
    let mut order: Vec<&str> = Vec::new();
    gone.into_iter().for_each(|name| {
        if !order.contains(&name) {
            order.push(name);
        }
    });
    assert_eq!(order, ["d", "a", "c", "b"]);
}

#[test]
fn lookup_counts_as_use() {
    let clock = Arc::new(ManualClock::default());
    let store = LocalStore::builder().max_memory_bytes(300).clock(Arc::clone(&clock) as _).build();
    let holder = store.holder("m");
    for name in ["a", "b", "c"] {
        put(&store, spec(name, &[25], 5), &holder, &[0.0; 25]);
        clock.advance(Duration::from_secs(1));
    }
    // Only lookups change the order of eviction here.
    store.get("a", &holder).unwrap();
    clock.advance(Duration::from_secs(1));
    let b = store.get("b", &holder).unwrap().id();
    clock.advance(Duration::from_secs(1));
    store.get("a", &holder).unwrap();
    clock.advance(Duration::from_secs(1));
    store.lease(b, &holder).unwrap();
    for expected in [&["a", "b"][..], &["b"]] {
        let freed = 100 * (3 - expected.len());
        drop(store.reserve_private(spec("room", &[freed / 4], 0), &holder).unwrap());
        let left: Vec<String> = store.diagnostics().tensors.into_iter().map(|tensor| tensor.name).collect();
        assert_eq!(left, expected);
    }
}

#[test]
fn refused_tensors_are_private_and_counted() {
    let config = SharingConfig {
        enable_shared_tensors: true,
        allowed_types: Some(vec![Kind::TextEmbedding]),
        max_shared_tensor_size_bytes: Some(100),
    };
    let store = LocalStore::builder().config(config).build();
    let holder = store.holder("m");
    let refused = |spec: TensorSpec| store.reserve(spec, &holder).unwrap_err().kind() == ErrorKind::Refused;
    assert!(refused(spec("large", &[26], 1)));
    assert!(refused(TensorSpec { kind: Kind::Other, ..spec("kind", &[1], 1) }));
    store.reserve(TensorSpec { kind: Kind::Weight, ..spec("weight", &[100], 1) }, &holder).unwrap();
    assert_eq!(store.stats().refused.values().sum::<u64>(), 2);

    let private = store.reserve_private(spec("large", &[26], 1), &holder).unwrap().publish().unwrap();
    assert_eq!(store.get("large", &holder).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!((store.stats().total_tensors, store.stats().memory_usage_bytes), (0, 104));
    let again = private.try_clone().unwrap();
    drop(private);
    assert_eq!(store.stats().memory_usage_bytes, 104);
    drop(again);
    assert_eq!(store.stats().memory_usage_bytes, 0);

    let off = LocalStore::builder()
        .config(SharingConfig { enable_shared_tensors: false, ..SharingConfig::default() })
        .build();
    assert_eq!(off.reserve(spec("x", &[1], 1), &off.holder("m")).unwrap_err().kind(), ErrorKind::Refused);
}

#[test]
fn all_results_are_recomputed_when_one_is_freed() {
    let store = LocalStore::builder().build();
    let holder = store.holder("m");
    let key = Key(ContentHash::of(b"key"));
    let compute = || {
        let Claim::Compute(ticket) = store.claim(&key, &holder).unwrap() else { panic!("expected to compute") };
        let results = ["a", "b"].map(|name| store.reserve(spec(name, &[1], 1), &holder).unwrap());
        ticket.publish(results.into()).unwrap()
    };
    // The lease of the old `a` is dropped after `a` is computed again. That must not free the newer result.
    let old = compute();
    assert!(store.is_computed(&key));
    store.remove("b").unwrap();
    let mut old = old.into_iter();
    let old_a = old.next().unwrap();
    drop(old);
    assert!(!store.is_computed(&key));
    drop(compute());
    drop(old_a);
    assert!(store.is_computed(&key));
    assert!(matches!(store.claim(&key, &holder).unwrap(), Claim::Ready(leases) if leases.len() == 2));
}

#[test]
fn identity_is_provenance_or_content() {
    let store = LocalStore::builder().build();
    let holder = store.holder("m");
    let a = put(&store, spec("a", &[2], 1), &holder, &[1.0, 2.0]);
    let b = put(&store, spec("b", &[2], 1), &holder, &[1.0, 2.0]);
    let c = put(&store, spec("c", &[2], 1), &holder, &[1.0, 3.0]);
    let d = put(&store, spec("d", &[2, 1], 1), &holder, &[1.0, 2.0]);
    assert_eq!(a.identity(), b.identity());
    assert_ne!(a.identity(), c.identity());
    assert_ne!(a.identity(), d.identity(), "another shape is another value");
    let made = ContentHash::of(b"stage and inputs");
    let e = put(&store, TensorSpec { provenance: Some(made), ..spec("e", &[2], 1) }, &holder, &[1.0, 2.0]);
    assert_eq!(e.identity(), made);
    // The store has the identities of `a` and `b`, which are equal: one of the two could be saved.
    assert_eq!(store.recommendations().potential_savings_mb, 8.0 / f64::from(1 << 20));
}

#[test]
fn reports_count_tensors_copies_and_lookups() {
    let clock = Arc::new(ManualClock::default());
    let store = LocalStore::builder().clock(Arc::clone(&clock) as _).build();
    let (bert, t5) = (store.holder("bert"), store.holder("t5"));
    let lease = put(&store, spec("x", &[1 << 18], 1), &bert, &[0.0]);
    clock.advance(Duration::from_secs(3));
    let shared = lease.lease_for(&t5).unwrap();
    let again = store.get("x", &t5).unwrap();
    assert!(store.get("nothing", &t5).is_err());
    store.record_copy("x", CopyReason::Put, 10);
    store.record_copy("x", CopyReason::Put, 5);
    let stats = store.stats();
    assert_eq!((stats.total_tensors, stats.total_models, stats.memory_usage_mb), (1, 2, 1.0));
    assert_eq!((stats.cache_hits, stats.cache_misses, stats.hit_rate), (1, 1, 0.5));
    assert_eq!(stats.models, ["bert", "t5"]);
    assert!(stats.sharing_opportunities.is_empty(), "two holders of one tensor share it already");
    assert_eq!((&*stats.copies[0].reason, stats.copies[0].count, stats.copies[0].bytes), ("put", 3, 4 + 10 + 5));
    let info = store.diagnostics().tensors.remove(0);
    assert_eq!((info.holders["bert"], info.holders["t5"], info.hits, info.age_seconds), (1, 2, 1, 3.0));
    assert_eq!((&*info.device, &*info.memory, info.bytes, info.cached), ("cpu", "heap", 1 << 20, true));
    assert_eq!(&*lease.holder(), "bert");
    drop((lease, shared, again));
    let recommendations = store.recommendations();
    assert_eq!(recommendations.largest_tensors, [("x".to_owned(), 1 << 20)]);
    assert_eq!(recommendations.low_reference_tensors, [("x".to_owned(), 0)]);
    assert_eq!((recommendations.total_memory_mb, recommendations.potential_savings_mb), (1.0, 1.0));
    let report = store.optimize();
    assert_eq!((report.initial_memory_bytes, report.current_memory_bytes), (1 << 20, 0));
    assert_eq!(store.optimize().memory_reduction_percent, 0.0);
}

#[test]
fn reports_name_the_producers_of_tensors_without_leases() {
    let store = LocalStore::builder().build();
    let holder = store.holder("m");
    let by = |name: &str, producer: &str| TensorSpec { producer: producer.to_owned(), ..spec(name, &[2], 1) };
    let held = put(&store, by("held", "train"), &holder, &[0.0, 0.0]);
    for (name, producer) in [("a", "train"), ("b", "train"), ("c", "embed")] {
        drop(put(&store, by(name, producer), &holder, &[0.0, 0.0]));
    }
    let stats = store.stats();
    assert_eq!((stats.kept_tensors, stats.kept_bytes), (3, 24));
    let kept: Vec<_> = stats.kept_by.iter().map(|kept| (&*kept.producer, kept.tensors, kept.bytes)).collect();
    assert_eq!(kept, [("train", 2, 16), ("embed", 1, 8)]);
    let again = store.get("a", &holder).unwrap();
    assert_eq!(store.stats().kept_tensors, 2);
    drop((held, again));
    assert_eq!(store.stats().kept_tensors, 4);

    for number in 0..20u8 {
        drop(put(&store, by(&format!("x{number}"), &format!("p{number}")), &holder, &[0.0, 0.0]));
    }
    let stats = store.stats();
    assert_eq!((stats.kept_tensors, stats.kept_bytes, stats.kept_by.len()), (24, 192, 10));
    store.optimize();
    assert_eq!(store.stats().kept_by, []);
}

#[test]
fn private_or_foreign_results_are_refused() {
    let (store, other) = (LocalStore::builder().build(), LocalStore::builder().build());
    let (holder, key) = (store.holder("m"), Key(ContentHash::of(b"key")));
    let ticket = || match store.claim(&key, &holder).unwrap() {
        Claim::Compute(ticket) => ticket,
        Claim::Ready(leases) => panic!("{} results of nothing", leases.len()),
    };
    let foreign = other.reserve(spec("x", &[1], 1), &other.holder("m")).unwrap();
    let private = store.reserve_private(spec("x", &[1], 1), &holder).unwrap();
    for results in [vec![], vec![store.reserve(spec("x", &[1], 1), &holder).unwrap(), foreign], vec![private]] {
        assert_eq!(ticket().publish(results).unwrap_err().kind(), ErrorKind::Invalid);
        assert!(!store.is_computed(&key));
    }
    assert_eq!((store.stats().total_tensors, other.stats().total_tensors), (0, 0));
    assert_eq!((store.stats().memory_usage_bytes, other.stats().memory_usage_bytes), (0, 0));
    ticket().publish(vec![store.reserve(spec("x", &[1], 1), &holder).unwrap()]).unwrap();
    assert!(store.is_computed(&key));
}

#[test]
fn copies_to_and_from_a_device_are_counted() {
    let device = cotensor_core::testing::FakeDevice::default();
    let store = LocalStore::builder().memory(Arc::new(device)).build();
    let holder = store.holder("m");
    let lease = put(&store, spec("x", &[2], 1).on(Device::Fake(0)), &holder, &[1.0, 2.0]);
    // Hashed on the host, once.
    assert_eq!(lease.identity(), lease.identity());
    let copies = store.diagnostics().copies;
    let copies: Vec<_> = copies.iter().map(|copies| (&*copies.reason, copies.count, copies.bytes)).collect();
    assert_eq!(copies, [("put", 1, 8), ("device transfer", 1, 8)]);
    let mut small = store.reserve(spec("y", &[1], 1), &holder).unwrap();
    assert_eq!(small.write(&[0; 5], CopyReason::Put).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(store.diagnostics().copies[0].count, 1, "a failed write is not counted");
}
