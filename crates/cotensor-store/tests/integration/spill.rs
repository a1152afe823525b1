//! Spilling and restoring.

use crate::fake_disk::{FakeDisk, SharedDisk, put, put_as, spec, store};
use cotensor_core::testing::FakeDevice;
use cotensor_core::{ContentHash, ErrorKind, Memory};
use cotensor_store::{
    Claim, ComputationStore, CopyReason, Key, LocalStore, MemoryControl, SpilledTensorInfo, StoreReports, TensorStore,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

#[test]
fn unleased_tensor_is_spilled_and_restored() {
    let (disk, store, holder) = store(250);
    let a = put(&store, &holder, "a", 1).unwrap();
    let id = a.id();
    drop(a);
    let held = put(&store, &holder, "b", 2).unwrap();
    drop(put(&store, &holder, "c", 3).unwrap());
    let stats = store.stats();
    assert_eq!((stats.spills, stats.spilled_bytes, stats.evictions, stats.memory_usage_bytes), (1, 100, 0, 200));
    assert_eq!((stats.total_tensors, stats.spilled_now, stats.spilled_now_bytes), (2, 1, 100));
    let away: Vec<_> =
        store.spilled("").into_iter().map(|SpilledTensorInfo { tensor, .. }| (tensor.id, tensor.spec.name)).collect();
    assert_eq!(away, [(id, "a".to_owned())]);
    assert!(store.has(id) && store.spilled("b").is_empty());

    // Both `get` and `lease` restore it. The first restore spills c.
    let back = store.get("a", &holder).unwrap();
    assert_eq!((back.id(), back.bytes().unwrap()), (id, &[1; 100][..]));
    assert_eq!(store.spilled("")[0].tensor.spec.name, "c");
    assert_eq!(disk.segments.lock().unwrap().len(), 1, "restoring removes the spilled bytes");
    let c = store.spilled("")[0].tensor.id;
    assert_eq!(store.lease(c, &holder).unwrap_err().kind(), ErrorKind::OverBudget, "a and b are leased");
    drop(back);
    assert_eq!(store.lease(c, &holder).unwrap().bytes().unwrap(), [3; 100]);
    assert_eq!(store.stats().restores, 2);
    assert_eq!(held.bytes().unwrap(), [2; 100]);
}

#[test]
fn publishing_or_removing_a_name_frees_its_spilled_version() {
    let (disk, store, holder) = store(100);
    for name in ["a", "b", "c"] {
        drop(put(&store, &holder, name, 1).unwrap());
    }
    assert_eq!(disk.segments.lock().unwrap().len(), 2);
    let newer = put(&store, &holder, "a", 9).unwrap();
    assert_eq!(
        (newer.id().version, disk.segments.lock().unwrap().len()),
        (2, 2),
        "c is spilled, the first version of a is freed"
    );
    drop(newer);
    store.remove("b").unwrap();
    assert_eq!(store.get("b", &holder).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(store.remove("b").unwrap_err().kind(), ErrorKind::NotFound);
    store.remove("c").unwrap();
    assert!(disk.segments.lock().unwrap().is_empty());
    assert_eq!(store.get("a", &holder).unwrap().bytes().unwrap(), [9; 100]);
}

#[test]
fn cheap_tensor_is_evicted_instead_of_spilled() {
    let (disk, store, holder) = store(300);
    drop(put_as(&store, &holder, spec("quick", 100, Duration::from_nanos(1)), 1).unwrap());
    drop(put_as(&store, &holder, spec("slow", 100, Duration::from_secs(1)), 2).unwrap());
    drop(put_as(&store, &holder, spec("slower", 100, Duration::from_secs(2)), 3).unwrap());
    let big = put_as(&store, &holder, spec("big", 200, Duration::ZERO), 4).unwrap();
    assert_eq!((store.stats().evictions, store.stats().spills), (1, 1));
    assert_eq!(store.get("quick", &holder).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(store.spilled("")[0].tensor.spec.name, "slow", "the cheapest per byte is removed first");
    drop(big);
    assert_eq!(store.get("slow", &holder).unwrap().bytes().unwrap(), [2; 100]);
    drop((disk, store));
}

#[test]
fn shed_until_follows_the_order_of_eviction() {
    let (disk, store, holder) = store(1000);
    for (name, recompute) in
        [("slow", Duration::from_secs(9)), ("quick", Duration::from_nanos(1)), ("any", Duration::ZERO)]
    {
        drop(put_as(&store, &holder, spec(name, 100, recompute), 1).unwrap());
    }
    let held = put(&store, &holder, "held", 2).unwrap();
    let mut wanted = 3;
    let enough = |wanted: &mut i32| {
        *wanted -= 1;
        *wanted == 0
    };
    assert!(store.shed_until(&mut || enough(&mut wanted)).unwrap());
    let stats = store.stats();
    assert_eq!((stats.spills, stats.evictions, stats.total_tensors), (1, 1, 2), "slow and held stay");
    assert_eq!(store.spilled("")[0].tensor.spec.name, "any");
    assert!(!store.shed_until(&mut || false).unwrap(), "all removable tensors are not enough");
    assert_eq!((store.stats().spilled_now, store.stats().total_tensors), (2, 1));

    // A restore can need descriptors too.
    drop(held);
    disk.failing_restores.store(2, Ordering::SeqCst);
    assert_eq!(store.get("any", &holder).unwrap().bytes().unwrap(), [1; 100]);
    assert_eq!(store.stats().spilled_now, 2, "held is spilled for it");
    let any = store.get("any", &holder).unwrap();
    disk.failing_restores.store(9, Ordering::SeqCst);
    let error = store.get("slow", &holder).unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::OverBudget, "no descriptor is left"));
    drop(any);
}

#[test]
fn failed_spill_keeps_the_tensor_and_names_the_cause() {
    let (disk, store, holder) = store(200);
    drop(put(&store, &holder, "a", 1).unwrap());
    let held = put(&store, &holder, "b", 2).unwrap();
    disk.full.store(true, Ordering::SeqCst);
    let error = put(&store, &holder, "c", 3).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OverBudget);
    for word in ["m holds 100 B", "fit the budget of 200 B", "no space left"] {
        assert!(error.message().contains(word), "{error}");
    }
    assert_eq!(store.get("a", &holder).unwrap().bytes().unwrap(), [1; 100]);
    disk.full.store(false, Ordering::SeqCst);
    drop(put(&store, &holder, "c", 3).unwrap());
    drop(held);
    // A damaged tensor is an error for each lookup and does not affect other tensors.
    disk.damaged.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        let error = store.get("a", &holder).unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::Corrupt, Some("a")));
        assert!(store.spilled("a")[0].lost.as_ref().is_some_and(|why| why.contains("damaged")), "listed as lost");
    }
    disk.damaged.store(false, Ordering::SeqCst);
    for (name, value) in [("a", 1), ("b", 2), ("c", 3)] {
        assert_eq!(store.get(name, &holder).unwrap().bytes().unwrap(), [value; 100]);
    }
}

#[test]
fn full_disk_swaps_a_restored_tensor_with_an_unleased_one() {
    let (disk, store, holder) = store(200);
    disk.bytes_max.store(100, Ordering::SeqCst);
    for (name, value) in [("a", 1), ("b", 2), ("c", 3)] {
        drop(put(&store, &holder, name, value).unwrap());
    }
    for _ in 0..3 {
        for (name, value) in [("a", 1), ("b", 2), ("c", 3)] {
            assert_eq!(store.get(name, &holder).unwrap().bytes().unwrap(), [value; 100], "{name}");
            assert_eq!((store.stats().memory_usage_bytes, store.spilled("").len()), (200, 1));
        }
    }
    // A new tensor does not fit, and evicts none of the others.
    assert_eq!(put(&store, &holder, "d", 4).unwrap_err().kind(), ErrorKind::OverBudget);
    for (name, value) in [("a", 1), ("b", 2), ("c", 3)] {
        assert_eq!(store.get(name, &holder).unwrap().bytes().unwrap(), [value; 100], "{name}");
    }
    assert_eq!(store.stats().evictions, 0);
}

#[test]
fn spilled_tensor_stays_spilled_without_room() {
    let (disk, store, holder) = store(200);
    disk.bytes_max.store(50, Ordering::SeqCst);
    drop(put_as(&store, &holder, spec("small", 50, Duration::ZERO), 1).unwrap());
    drop(put_as(&store, &holder, spec("big", 200, Duration::ZERO), 2).unwrap());
    for _ in 0..2 {
        let error = store.get("small", &holder).unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::OverBudget, Some("small")));
        assert!(error.message().contains("no space left"), "{error}");
        assert_eq!((store.stats().memory_usage_bytes, store.spilled("")[0].tensor.spec.name.as_str()), (200, "small"));
    }
    assert_eq!(store.get("big", &holder).unwrap().bytes().unwrap(), [2; 200]);
    store.remove("big").unwrap();
    assert_eq!(store.get("small", &holder).unwrap().bytes().unwrap(), [1; 50]);
}

#[test]
fn full_disk_evicts_only_tensors_with_a_recompute_time() {
    let (disk, store, holder) = store(300);
    disk.bytes_max.store(1, Ordering::SeqCst);
    let hour = Duration::from_secs(3600);
    for (name, recompute) in [("put", Duration::ZERO), ("result", hour), ("dear", 2 * hour)] {
        drop(put_as(&store, &holder, spec(name, 100, recompute), 1).unwrap());
    }
    for (names, gone) in [(["new", "put", "dear"], "result"), (["newer", "new", "put"], "dear")] {
        drop(put(&store, &holder, names[0], 1).unwrap());
        assert_eq!(store.get(gone, &holder).unwrap_err().kind(), ErrorKind::NotFound);
        assert!(names.iter().all(|name| store.get(name, &holder).is_ok()));
    }
    assert_eq!(put(&store, &holder, "newest", 1).unwrap_err().kind(), ErrorKind::OverBudget);
}

#[test]
fn spilled_results_are_restored_not_recomputed() {
    let (_disk, store, holder) = store(200);
    let key = Key(ContentHash::of(b"stage"));
    let Claim::Compute(ticket) = store.claim(&key, &holder).unwrap() else { panic!("nothing is there") };
    let results = ["x", "y"].map(|name| {
        let mut result = store.reserve(spec(name, 100, Duration::from_secs(1)), &holder).unwrap();
        result.write(&[name.as_bytes()[0]; 100], CopyReason::Put).unwrap();
        result
    });
    drop(ticket.publish(results.into()).unwrap());
    drop(put_as(&store, &holder, spec("other", 150, Duration::ZERO), 1).unwrap());
    assert_eq!(store.spilled("").len(), 2);
    assert!(store.is_computed(&key));
    let Claim::Ready(leases) = store.claim(&key, &holder).unwrap() else { panic!("they were spilled, not lost") };
    let firsts: Vec<u8> = leases.iter().map(|lease| lease.bytes().unwrap()[0]).collect();
    assert_eq!(firsts, *b"xy");
    drop(leases);
    // Without one of its results, the computation can be claimed again.
    drop(put_as(&store, &holder, spec("other", 150, Duration::ZERO), 1).unwrap());
    store.remove("y").unwrap();
    assert!(!store.is_computed(&key));
    assert!(matches!(store.claim(&key, &holder).unwrap(), Claim::Compute(_)));
}

#[test]
fn threads_find_all_tensors_under_pressure() {
    const NAMES: u8 = 12;
    let (disk, store, holder) = store(700);
    for name in 0..NAMES {
        drop(put(&store, &holder, &name.to_string(), name).unwrap());
    }
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (store, holder) = (&store, store.holder(&format!("thread {thread}")));
            scope.spawn(move || {
                for turn in 0..300u32 {
                    let name = (turn.wrapping_mul(7 + thread) % u32::from(NAMES)) as u8;
                    let lease = store.get(&name.to_string(), &holder).unwrap();
                    assert_eq!(lease.bytes().unwrap(), [name; 100]);
                }
            });
        }
    });
    let stats = store.stats();
    assert!(stats.memory_usage_bytes <= 700 && stats.restores > 0 && stats.evictions == 0, "{stats:?}");
    assert_eq!(disk.segments.lock().unwrap().len(), store.spilled("").len());
    drop(holder);
}

#[test]
fn device_tensors_are_spilled_and_restored_by_counted_copies() {
    let device = FakeDevice::default();
    let disk = Arc::new(FakeDisk::default());
    let store = LocalStore::builder().memory(Arc::new(device.clone())).max_device_bytes(device.device(), 250);
    let store = store.spill(Arc::new(SharedDisk(Arc::clone(&disk)))).build();
    let holder = store.holder("m");
    let put = |name: &str, value| put_as(&store, &holder, spec(name, 100, Duration::ZERO).on(device.device()), value);
    let transferred =
        || store.stats().copies.iter().map(|copies| (copies.reason.clone(), copies.bytes)).collect::<Vec<_>>();
    let id = put("a", 1).unwrap().id();
    drop(put("b", 2).unwrap());
    drop(put("c", 3).unwrap());
    assert_eq!((store.stats().spills, store.stats().spilled_bytes, device.live_bytes()), (1, 100, 200));
    assert_eq!(transferred(), [("put".to_owned(), 300), ("device transfer".to_owned(), 100)]);
    let back = store.get("a", &holder).unwrap();
    assert_eq!((back.id(), back.device(), device.live_bytes()), (id, device.device(), 200));
    assert_eq!(store.stats().restores, 1);
    // "b" was copied out, and "a" in.
    assert_eq!(transferred()[1].1, 300);
    assert_eq!(back.copy_to_host().unwrap(), [1; 100]);
    assert_eq!(store.get("b", &holder).unwrap().copy_to_host().unwrap(), [2; 100]);
    drop(back);
    store.optimize();
    for name in ["a", "b", "c"] {
        drop(store.remove(name));
    }
    assert_eq!((device.live_bytes(), disk.used_bytes.load(Ordering::SeqCst)), (0, 0));
}
