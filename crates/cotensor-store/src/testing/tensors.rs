//! Names, versions and leases.

use super::fixtures::{LARGE, OpenStore, all_are, cached, ends_empty, put, spec};
use crate::{CopyReason, Expected, Lease, Reservation, Store, TensorId, TensorSpec};
use cotensor_core::testing::until;
use cotensor_core::{ContentHash, DType, ErrorKind, Kind, Slice, Space};

pub(super) fn published_bytes_reach_other_clients(make: &dyn Fn(u64) -> OpenStore) {
    let open = make(u64::MAX);
    let watcher = open();
    let (one, other) = (open(), open());
    let sizes = [0, 1, 4096, 300_000, 3 * LARGE];
    // The second time in memory that is used again, where a store has any.
    for (bytes, is_filled) in sizes.into_iter().flat_map(|bytes| [(bytes, false), (bytes, true), (bytes, true)]) {
        let described = TensorSpec {
            shape: vec![bytes / 4, 1, 4],
            kind: Kind::VisionEmbedding,
            space: Some(Space(ContentHash::of(b"encoder"))),
            metadata: Some(r#"{"layer":3}"#.into()),
            ..spec("x", bytes)
        };
        let content: Vec<u8> = (0..bytes / 4 * 4).map(|index| (index % 251) as u8).collect();
        let holder = one.holder("writer");
        let reserve =
            || if is_filled { one.reserve_to_fill(described, &holder) } else { one.reserve(described, &holder) };
        let mut reservation = reserve().expect("reserve");
        reservation.write(&content, CopyReason::Put).expect("write");
        let made = reservation.publish().expect("publish");
        let found = other.get("x", &other.holder("reader")).expect("get");
        assert!(found.bytes() == Some(&content) && made.bytes() == Some(&content), "{bytes}");
        assert_eq!((found.id(), found.name(), found.shape()), (made.id(), "x", &[bytes / 4, 1, 4][..]));
        assert_eq!((found.dtype(), found.kind(), found.producer()), (DType::U8, Kind::VisionEmbedding, "suite"));
        assert_eq!((found.space(), found.identity()), (Some(Space(ContentHash::of(b"encoder"))), made.identity()));
        assert_eq!((found.metadata(), made.metadata()), (Some(r#"{"layer":3}"#), found.metadata()));
        assert_eq!((&*found.holder(), &*made.holder()), ("reader", "writer"));
        // The lease of the producer is not needed.
        drop(made);
        assert!(found.bytes() == Some(&content));
    }
    drop((one, other));
    ends_empty(&*watcher);
}

pub(super) fn publication_can_expect_a_version(make: &dyn Fn(u64) -> OpenStore) {
    let open = make(u64::MAX);
    let watcher = open();
    for bytes in [10, LARGE] {
        let (one, other) = (open(), open());
        let publish = |store: &dyn Store, expected| {
            let reservation = store.reserve(cached("x", bytes, 1), &store.holder("writer")).expect("reserve");
            reservation.publish_expecting(expected).map_err(|error| error.kind())
        };
        // Of several publications that expect a free name, one succeeds.
        let made: Vec<Lease> = std::thread::scope(|scope| {
            let start = || scope.spawn(|| publish(&*one, Expected::Absent));
            let threads: Vec<_> = (0..4).map(|_| start()).collect();
            threads.into_iter().filter_map(|thread| thread.join().expect("a thread").ok()).collect()
        });
        let [first] = &made[..] else { panic!("{} publications of a free name", made.len()) };
        let second = put(&*other, cached("x", bytes, 1), 2);
        for expected in [Expected::Absent, Expected::Version(first.id())] {
            assert_eq!(publish(&*one, expected).err(), Some(ErrorKind::Conflict), "{expected:?}");
        }
        let found = one.get("x", &one.holder("reader")).expect("get");
        assert!(found.id() == second.id() && all_are(&found, 2));
        let third = publish(&*one, Expected::Version(second.id())).expect("the expected version");
        assert!(third.id().version > second.id().version);
        other.remove("x").expect("remove");
        let gone = publish(&*one, Expected::Version(third.id())).err();
        assert_eq!(gone, Some(ErrorKind::Conflict), "no version is not the expected one");
        drop(publish(&*one, Expected::Absent).expect("a free name"));
        other.remove("x").expect("remove");
    }
    ends_empty(&*watcher);
}

pub(super) fn many_tensors_are_published_and_leased_together(make: &dyn Fn(u64) -> OpenStore) {
    let open = make(u64::MAX);
    let (one, other, watcher) = (open(), open(), open());
    let size = |index: usize| [1, 5000, LARGE][index % 3] + index;
    let names: Vec<String> = (0..300).map(|index| format!("n{index}")).collect();
    let reservations = names.iter().enumerate().map(|(index, name)| {
        let bytes = vec![index as u8; size(index)];
        let mut reservation = one.reserve_to_fill(spec(name, bytes.len()), &one.holder("w")).expect("reserve");
        reservation.write(&bytes, CopyReason::Put).expect("write");
        reservation
    });
    let published = Reservation::publish_each(reservations.collect());
    let made: Vec<Lease> = published.into_iter().map(|lease| lease.expect("publish")).collect();
    // Twice: the second time the reader has them.
    for _ in 0..2 {
        let mut asked = names.clone();
        asked.insert(1, "absent".to_owned());
        let mut found = other.get_each(&asked, &other.holder("r"));
        assert_eq!(found.remove(1).err().map(|error| error.kind()), Some(ErrorKind::NotFound));
        for (index, (lease, made)) in found.into_iter().zip(&made).enumerate() {
            let lease = lease.expect("get");
            assert_eq!((lease.id(), lease.layout().size_bytes()), (made.id(), size(index)));
            assert!(all_are(&lease, index as u8) && all_are(made, index as u8), "{index}");
        }
    }
    assert!(other.get_each(&[], &other.holder("r")).is_empty() && Reservation::publish_each(Vec::new()).is_empty());
    drop((one, other, made));
    ends_empty(&*watcher);
}

pub(super) fn leased_version_outlives_its_successor(make: &dyn Fn(u64) -> OpenStore) {
    let open = make(u64::MAX);
    let (one, other, watcher) = (open(), open(), open());
    for bytes in [100, LARGE] {
        let first = put(&*one, spec("x", bytes), 1);
        let kept = other.get("x", &other.holder("r")).expect("get");
        let second = put(&*one, spec("x", bytes), 2);
        assert_eq!((second.id().name_id, second.id().version), (first.id().name_id, first.id().version + 1));
        assert!(all_are(&kept, 1) && all_are(&other.get("x", &other.holder("r")).expect("get"), 2));
        assert!(all_are(&other.lease(first.id(), &other.holder("r")).expect("it is held"), 1));
        assert!(other.has(first.id()) && other.has(second.id()));
        let id = first.id();
        drop((first, kept));
        until("the older version goes", || !other.has(id));
        assert_eq!(other.lease(id, &other.holder("r")).err().map(|error| error.kind()), Some(ErrorKind::NotFound));
        drop(second);
        until("the name goes", || one.get("x", &one.holder("r")).is_err());
    }
    drop((one, other));
    ends_empty(&*watcher);
}

pub(super) fn unleased_tensor_is_freed_unless_cached(make: &dyn Fn(u64) -> OpenStore) {
    let open = make(u64::MAX);
    let (one, other, watcher) = (open(), open(), open());
    for bytes in [64, LARGE] {
        drop((put(&*one, spec("goes", bytes), 1), put(&*one, cached("stays", bytes, 1), 2)));
        until("the uncached tensor is freed", || other.get("goes", &other.holder("")).is_err());
        assert!(all_are(&other.get("stays", &other.holder("")).expect("it stays"), 2));
    }
    // A dropped reservation publishes nothing.
    drop(one.reserve(spec("never", LARGE), &one.holder("")).expect("reserve"));
    assert_eq!(one.get("never", &one.holder("")).err().map(|error| error.kind()), Some(ErrorKind::NotFound));
    drop((one, other));
    until("one is left", || watcher.stats().total_tensors == 1);
    until("it can be freed", || {
        watcher.optimize();
        watcher.stats().total_tensors == 0
    });
    ends_empty(&*watcher);
}

pub(super) fn removed_name_keeps_its_leases(make: &dyn Fn(u64) -> OpenStore) {
    let open = make(u64::MAX);
    let (one, other) = (open(), open());
    let superseded = put(&*one, cached("x", LARGE, 1), 0);
    let kept = put(&*one, cached("x", LARGE, 1), 1);
    let kind = |outcome: cotensor_core::Result<()>| outcome.err().map(|error| error.kind());
    assert_eq!(kind(other.remove_version("x", Some(superseded.id()))), Some(ErrorKind::NotFound));
    assert_eq!(kind(other.remove_version("none", Some(kept.id()))), Some(ErrorKind::NotFound));
    drop(superseded);
    other.remove_version("x", Some(kept.id())).expect("remove");
    assert_eq!(kind(one.remove_version("x", Some(kept.id()))), Some(ErrorKind::NotFound));
    assert_eq!(kind(other.remove("x")), Some(ErrorKind::NotFound));
    for store in [&one, &other] {
        assert_eq!(kind(store.get("x", &store.holder("")).map(drop)), Some(ErrorKind::NotFound));
    }
    assert!(all_are(&kept, 1));
    let next = put(&*other, spec("x", LARGE), 2);
    assert!(next.id() != kept.id() && all_are(&kept, 1));
    drop((kept, next, one));
    ends_empty(&*other);
}

pub(super) fn views_and_clones_keep_the_tensor(make: &dyn Fn(u64) -> OpenStore) {
    let open = make(u64::MAX);
    let (one, other) = (open(), open());
    for bytes in [4096, LARGE] {
        let made = put(&*one, spec("x", bytes), 3);
        let found = other.get("x", &other.holder("a")).expect("get");
        let clone = found.try_clone().expect("clone");
        let another = found.lease_for(&other.holder("b")).expect("another");
        let view = found.view(&[Slice { start: 10, len: 20, step: 2 }]).expect("view");
        assert_eq!(view.shape(), [20]);
        assert!(found.view(&[Slice { start: 10, len: bytes, step: 1 }]).is_err());
        drop((made, found, clone));
        assert!(all_are(&another, 3) && one.get("x", &one.holder("")).is_ok());
        drop(another);
        assert!(view.bytes().is_some_and(|bytes| bytes[0] == 3) && one.get("x", &one.holder("")).is_ok());
        drop(view);
        until("it goes", || one.get("x", &one.holder("")).is_err());
    }
}

pub(super) fn private_tensor_is_unlisted(make: &dyn Fn(u64) -> OpenStore) {
    let open = make(u64::MAX);
    let (one, other) = (open(), open());
    let mut private = one.reserve_private(spec("mine", LARGE), &one.holder("m")).expect("reserve");
    private.write(&[5; LARGE], CopyReason::EngineOutput).expect("write");
    let private = private.publish().expect("publish");
    let again = private.try_clone().expect("clone");
    drop(private);
    assert!(all_are(&again, 5));
    for store in [&one, &other] {
        assert_eq!(store.get("mine", &store.holder("")).err().map(|error| error.kind()), Some(ErrorKind::NotFound));
        assert!(store.diagnostics().tensors.is_empty() && store.stats().total_tensors == 0);
    }
    drop(again);
    ends_empty(&*one);
}

pub(super) fn invalid_requests_are_refused(make: &dyn Fn(u64) -> OpenStore) {
    let open = make(u64::MAX);
    let store = open();
    let holder = store.holder("m");
    let refused = |spec: TensorSpec| store.reserve(spec, &holder).err().map(|error| error.kind());
    for shape in [vec![usize::MAX, 2], vec![usize::MAX], vec![usize::MAX / 2, usize::MAX / 2]] {
        assert_eq!(refused(TensorSpec { shape, ..spec("x", 0) }), Some(ErrorKind::Invalid));
    }
    assert_eq!(refused(spec("", 1)), Some(ErrorKind::Invalid), "a name is required");
    assert_eq!(refused(spec(&"n".repeat(crate::NAME_BYTES_MAX + 1), 1)), Some(ErrorKind::Invalid));
    let metadata = Some(format!("{{{}}}", " ".repeat(crate::METADATA_BYTES_MAX)).into());
    assert_eq!(refused(TensorSpec { metadata, ..spec("x", 1) }), Some(ErrorKind::Invalid));
    let long = TensorSpec { producer: "p".repeat(crate::NAME_BYTES_MAX + 1), ..spec("x", 1) };
    assert_eq!(refused(long), Some(ErrorKind::Invalid));
    drop(put(&*store, spec(&"n".repeat(crate::NAME_BYTES_MAX), 1), 1));
    drop(put(&*store, spec("any \u{0} \u{1b}[2J ../../ name", 1), 1));
    let mut small = store.reserve(spec("x", 4), &holder).expect("reserve");
    let wrong = small.write(&[0; 5], CopyReason::Put).err().map(|error| error.kind());
    assert_eq!(wrong, Some(ErrorKind::Invalid));
    let unknown = TensorId { name_id: 1 << 40, version: 1 };
    assert!(!store.has(unknown));
    assert_eq!(store.lease(unknown, &holder).err().map(|error| error.kind()), Some(ErrorKind::NotFound));
}
