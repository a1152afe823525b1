//! Groups: several tensors under one name.

use super::fixtures::{LARGE, OpenStore, ends_empty, put, spec};
use crate::{CopyReason, Lease, Members, Store, TensorSpec};
use cotensor_core::testing::until;
use cotensor_core::{DType, Device, ErrorKind, Kind, Result};

/// A quantized weight: `codes` bytes and their scales, with empty and scalar members between them.
fn quantized(name: &str, codes: usize) -> TensorSpec {
    let members: [(&str, DType, &[usize]); 4] = [
        ("codes", DType::U8, &[codes]),
        ("empty", DType::F32, &[0, 3]),
        ("zero", DType::I64, &[]),
        ("scales", DType::F32, &[3, 1]),
    ];
    let members = Members::new(members).expect("valid members");
    TensorSpec { kind: Kind::Weight, producer: "suite".to_owned(), ..TensorSpec::group(name, members) }
}

/// Publishes a group whose codes are all `byte`.
fn put_group(store: &dyn Store, spec: TensorSpec, byte: u8) -> Lease {
    let codes = spec.members.as_ref().and_then(|members| members.find("codes").ok()).expect("codes").layout().len();
    let mut reservation = store.reserve(spec, &store.holder("writer")).expect("reserve");
    assert_eq!(reservation.members().expect("a group").len(), 4);
    reservation.write_member("codes", &vec![byte; codes], CopyReason::Put).expect("write");
    reservation.write_member("zero", &7i64.to_le_bytes(), CopyReason::Put).expect("write");
    let scales: Vec<u8> = [0.5f32, 1.5, 2.5].into_iter().flat_map(f32::to_le_bytes).collect();
    match reservation.member_bytes_mut("scales").expect("a member") {
        Some(bytes) => bytes.copy_from_slice(&scales),
        None => reservation.write_member("scales", &scales, CopyReason::Put).expect("write"),
    }
    reservation.publish().expect("publish")
}

fn kind<T>(outcome: Result<T>) -> Option<ErrorKind> {
    outcome.err().map(|error| error.kind())
}

fn codes_are(lease: &Lease, byte: u8) -> bool {
    let view = lease.member("codes").expect("codes");
    view.bytes().is_some_and(|bytes| bytes.iter().all(|&found| found == byte))
}

pub(super) fn group_is_published_and_leased_as_one(make: &dyn Fn(u64) -> OpenStore) {
    let open = make(u64::MAX);
    let (one, other, watcher) = (open(), open(), open());
    for codes in [5, 64, LARGE] {
        let made = put_group(&*one, quantized("w", codes), 9);
        assert_eq!(watcher.stats().total_tensors, 1, "the members have no names of their own");
        let found = other.get("w", &other.holder("reader")).expect("get");
        assert_eq!((found.id(), found.identity()), (made.id(), made.identity()));
        for lease in [&made, &found] {
            let members = lease.members().expect("a group");
            assert_eq!(
                members.iter().map(|member| member.name()).collect::<Vec<_>>(),
                ["codes", "empty", "zero", "scales"]
            );
            assert_eq!(
                (lease.dtype(), lease.shape(), lease.spec().members.as_deref()),
                (DType::U8, &[members.size_bytes()][..], Some(members))
            );
            assert!(codes_are(lease, 9));
            assert_eq!(lease.member("scales").expect("scales").typed::<f32>().expect("floats"), [0.5, 1.5, 2.5]);
            assert_eq!(lease.member("zero").expect("zero").typed::<i64>().expect("a number"), [7]);
            let empty = lease.member("empty").expect("empty");
            assert_eq!((empty.shape(), empty.bytes()), (&[0, 3][..], Some(&[][..])));
            assert_eq!(kind(lease.member("bias")), Some(ErrorKind::NotFound));
        }
        let listed = watcher.diagnostics().tensors.remove(0);
        assert_eq!((&*listed.name, listed.member_count), ("w", 4));
        // Equal members are equal values, whatever lies between them.
        let same = put_group(&*other, quantized("same", codes), 9);
        let others = put_group(&*other, quantized("others", codes), 8);
        assert!(same.identity() == found.identity() && others.identity() != found.identity());
        let plain = put(&*one, spec("plain", 64), 1);
        assert!(plain.members().is_none() && kind(plain.member("codes")) == Some(ErrorKind::NotFound));
        // A view of one member keeps the whole group.
        let view = found.member("codes").expect("codes");
        drop((made, found, same, others, plain));
        assert!(one.get("w", &one.holder("reader")).is_ok_and(|lease| codes_are(&lease, 9)));
        assert!(view.bytes().is_some_and(|bytes| bytes.len() == codes && bytes[0] == 9));
        drop(view);
        until("the group is freed", || one.get("w", &one.holder("reader")).is_err());
    }
    // A private group.
    let mut private = one.reserve_private(quantized("mine", 100), &one.holder("m")).expect("reserve");
    private.write_member("codes", &[3; 100], CopyReason::EngineOutput).expect("write");
    assert!(codes_are(&private.publish().expect("publish"), 3));
    drop((one, other));
    ends_empty(&*watcher);
}

pub(super) fn leased_group_outlives_its_successor(make: &dyn Fn(u64) -> OpenStore) {
    let open = make(u64::MAX);
    let (one, other, watcher) = (open(), open(), open());
    let first = put_group(&*one, quantized("w", 100), 1);
    let kept = other.get("w", &other.holder("r")).expect("get");
    let second = put_group(&*one, quantized("w", LARGE), 2);
    assert_eq!((second.id().name_id, second.id().version), (first.id().name_id, first.id().version + 1));
    let newest = other.get("w", &other.holder("r")).expect("get");
    assert!(codes_are(&kept, 1) && codes_are(&newest, 2));
    assert_eq!(newest.member("codes").expect("codes").shape(), [LARGE], "each version has its own members");
    assert!(codes_are(&other.lease(first.id(), &other.holder("r")).expect("it is leased"), 1));
    // The next version may be a plain tensor.
    let third = put(&*other, spec("w", 100), 3);
    assert!(one.get("w", &one.holder("r")).is_ok_and(|lease| lease.members().is_none()));
    let id = first.id();
    drop((first, kept));
    until("the first version is freed", || !other.has(id));
    assert!(codes_are(&newest, 2));
    other.remove("w").expect("remove");
    assert!(codes_are(&newest, 2) && one.get("w", &one.holder("r")).is_err());
    drop((second, newest, third, one, other));
    ends_empty(&*watcher);
}

pub(super) fn invalid_groups_are_refused(make: &dyn Fn(u64) -> OpenStore) {
    let open = make(u64::MAX);
    let (store, watcher) = (open(), open());
    let holder = store.holder("m");
    let good = quantized("w", 100);
    let refused = |spec: TensorSpec| {
        let error = store.reserve(spec.clone(), &holder).expect_err("it is refused");
        assert_eq!(error.field(), Some("members"), "{error}");
        assert_eq!(kind(store.reserve_private(spec, &holder)), Some(ErrorKind::Invalid));
        error.kind()
    };
    let bytes = good.shape[0];
    assert_eq!(refused(TensorSpec { shape: vec![bytes + 1], ..good.clone() }), ErrorKind::Invalid);
    assert_eq!(refused(TensorSpec { shape: vec![bytes, 1], ..good.clone() }), ErrorKind::Invalid);
    assert_eq!(refused(TensorSpec { dtype: DType::Bool, ..good.clone() }), ErrorKind::Invalid);
    let mut reservation = store.reserve(good, &holder).expect("reserve");
    assert_eq!(kind(reservation.write_member("codes", &[0; 99], CopyReason::Put)), Some(ErrorKind::Invalid));
    assert_eq!(kind(reservation.write_member("bias", &[], CopyReason::Put)), Some(ErrorKind::NotFound));
    assert_eq!(kind(reservation.member_bytes_mut("bias")), Some(ErrorKind::NotFound));
    drop(reservation);
    let mut plain = store.reserve(spec("x", 10), &holder).expect("reserve");
    assert!(plain.members().is_none() && kind(plain.member_bytes_mut("codes")) == Some(ErrorKind::NotFound));
    drop((plain, holder, store));
    ends_empty(&*watcher);
}

pub(super) fn device_group_is_one_tensor(device: Device, open: &OpenStore) {
    let (one, other) = (open(), open());
    let made = put_group(&*one, quantized("w", LARGE).on(device), 4);
    let found = other.get("w", &other.holder("reader")).expect("get");
    assert_eq!((found.device(), found.identity()), (device, made.identity()));
    let view = found.member("codes").expect("codes");
    assert_eq!((view.shape(), view.bytes()), (&[LARGE][..], None));
    assert!(view.copy_to_host().expect("copy").iter().all(|&byte| byte == 4));
    assert_eq!(found.member("zero").expect("zero").copy_to_host().expect("copy"), 7i64.to_le_bytes());
    let second = put_group(&*other, quantized("w", 10).on(device), 5);
    assert_eq!(view.copy_to_host().expect("copy")[0], 4);
    assert_eq!(second.member("codes").expect("codes").copy_to_host().expect("copy"), [5; 10]);
    drop((made, found, view, second));
    ends_empty(&*one);
}
