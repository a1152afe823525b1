//! Tensors in the memory of a device, whose bytes the host cannot address.

use super::fixtures::{LARGE, OpenStore, cached, ends_empty, put, spec};
use super::groups::device_group_is_one_tensor;
use crate::{BlobSource, BlobSpec, CopyReason, DeviceStats, Lease, Store};
use cotensor_core::testing::until;
use cotensor_core::{ContentHash, DType, Device, ErrorKind, Result, Slice};
use std::sync::Arc;

/// Runs the conformance suite for a device: `make` gives an empty store with room for that many bytes on `device`, and
/// without a limit for host memory.
///
/// # Panics
/// When the store breaks a promise of [`Store`].
pub fn device_conformance(device: Device, make: &dyn Fn(u64) -> OpenStore) {
    println!("device tensor is read by counted copies");
    device_tensor_is_read_by_counted_copies(device, &make(u64::MAX));
    println!("device tensor has versions, views and reports");
    device_tensor_has_versions_views_and_reports(device, &make(u64::MAX));
    println!("device group is one tensor");
    device_group_is_one_tensor(device, &make(u64::MAX));
    println!("device tensor outlives its producer");
    device_tensor_outlives_its_producer(device, &make(u64::MAX));
    println!("private device tensor is unlisted");
    private_device_tensor_is_unlisted(device, &make(u64::MAX));
    println!("device blobs are filled once");
    device_blobs_are_filled_once(device, &make(u64::MAX));
    println!("each device has its own budget");
    each_device_has_its_own_budget(device, &make(4 * taken(device, LARGE)));
}

fn on(store: &Arc<dyn Store>, device: Device) -> DeviceStats {
    let name = device.to_string();
    store.stats().devices.into_iter().find(|stats| stats.device == name).expect("the device is in the report")
}

/// The bytes of the device that a segment of `bytes` takes.
fn taken(device: Device, bytes: usize) -> u64 {
    device.allocated_bytes(bytes as u64)
}

fn transferred(store: &Arc<dyn Store>) -> u64 {
    let copies = store.stats().copies;
    copies.iter().find(|copies| copies.reason == CopyReason::DeviceTransfer.name()).map_or(0, |copies| copies.bytes)
}

fn device_tensor_is_read_by_counted_copies(device: Device, open: &OpenStore) {
    let (one, other, watcher) = (open(), open(), open());
    let content: Vec<u8> = (0..LARGE).map(|index| (index % 251) as u8).collect();
    let mut reservation = one.reserve(spec("x", LARGE).on(device), &one.holder("writer")).expect("reserve");
    assert_eq!(reservation.device(), device);
    assert!(reservation.bytes().is_none() && reservation.bytes_mut().is_none());
    reservation.write(&content, CopyReason::DeviceTransfer).expect("write");
    let made = reservation.publish().expect("publish");
    let found = other.get("x", &other.holder("reader")).expect("get");
    for lease in [&made, &found] {
        assert_eq!((lease.device(), lease.segment().device(), lease.spec().device), (device, device, device));
        assert!(lease.bytes().is_none());
        for error in [lease.host_bytes().expect_err("no host bytes"), lease.typed::<u8>().expect_err("no host bytes")] {
            assert_eq!((error.kind(), error.field()), (ErrorKind::Unsupported, Some("x")));
            assert!(error.to_string().contains(&device.to_string()), "{error}");
        }
    }
    until("the write is counted", || transferred(&watcher) == LARGE as u64);
    assert!(found.copy_to_host().expect("copy") == content);
    // A client reports its copies with its next report or publication.
    until("the read is counted", || transferred(&other) == 2 * LARGE as u64);
    assert_eq!(made.identity(), found.identity());
    drop((made, found, one, other));
    ends_empty(&*watcher);
    until("the device is empty", || on(&watcher, device).memory_usage_bytes == 0);
}

fn device_tensor_has_versions_views_and_reports(device: Device, open: &OpenStore) {
    let (one, other) = (open(), open());
    let first = put(&*one, spec("x", LARGE).on(device), 1);
    let second = put(&*other, spec("x", LARGE).on(device), 2);
    assert_eq!((second.id().name_id, second.id().version), (first.id().name_id, first.id().version + 1));
    assert_eq!((first.copy_to_host().expect("copy")[0], second.copy_to_host().expect("copy")[0]), (1, 2));
    let view = second.view(&[Slice { start: 10, len: 20, step: 1 }]).expect("view");
    assert_eq!((view.shape(), view.bytes()), (&[20][..], None));
    drop((first, second));
    until("the older version is freed", || on(&one, device).tensors == 1);
    // Its memory comes back with the last reference, a moment after its record.
    until("the view holds its tensor alone", || on(&other, device).memory_usage_bytes == taken(device, LARGE));
    let info = one.diagnostics().tensors.remove(0);
    assert_eq!((&*info.device, &*info.memory, info.bytes), (&*device.to_string(), "device", LARGE as u64));
    let host = other.stats();
    assert_eq!((host.memory_usage_bytes, host.total_tensors), (0, 1), "no host memory is taken");
    drop(view);
    until("the tensor is freed", || on(&one, device).memory_usage_bytes == 0);
    // A name moves from one memory to the other with its next version.
    let kept = put(&*one, spec("x", LARGE).on(device), 3);
    drop(put(&*one, cached("x", LARGE, 1), 4));
    assert_eq!(other.get("x", &other.holder("reader")).expect("get").device(), Device::Cpu);
    assert_eq!(kept.copy_to_host().expect("copy")[0], 3);
}

fn holds(lease: &Lease, byte: u8) -> bool {
    lease.copy_to_host().expect("copy").iter().all(|&found| found == byte)
}

fn device_tensor_outlives_its_producer(device: Device, open: &OpenStore) {
    let (one, other) = (open(), open());
    drop(put(&*one, cached("kept", LARGE, 1).on(device), 1));
    let made = put(&*one, spec("held", LARGE).on(device), 2);
    let held = other.get("held", &other.holder("reader")).expect("get");
    drop((made, one));
    let third = open();
    assert!(holds(&third.get("kept", &third.holder("reader")).expect("get"), 1));
    assert!(holds(&held, 2) && holds(&third.lease(held.id(), &third.holder("reader")).expect("lease"), 2));
    drop(held);
    until("the tensor is freed", || on(&third, device).tensors == 1);
    other.remove("kept").expect("remove");
    ends_empty(&*third);
}

fn private_device_tensor_is_unlisted(device: Device, open: &OpenStore) {
    let store = open();
    let mut reservation =
        store.reserve_private(spec("private", LARGE).on(device), &store.holder("m")).expect("reserve");
    reservation.write(&vec![1; LARGE], CopyReason::DeviceTransfer).expect("write");
    let lease = reservation.publish().expect("publish");
    assert_eq!((lease.device(), lease.is_private(), lease.bytes()), (device, true, None));
    assert!(holds(&lease, 1) && store.get("private", &store.holder("m")).is_err());
}

/// Fills blob `index` with its index, and counts.
struct Numbered(usize);

impl BlobSource for Numbered {
    fn fill(&mut self, index: usize, target: &mut [u8]) -> Result<()> {
        target.fill(index as u8);
        self.0 += 1;
        Ok(())
    }
}

fn device_blobs_are_filled_once(device: Device, open: &OpenStore) {
    let (one, other) = (open(), open());
    let specs: Vec<BlobSpec> = (0..3u8)
        .map(|index| {
            let bytes = vec![index; LARGE / 2];
            let (hash, shape) = (ContentHash::of(&bytes), vec![bytes.len()]);
            BlobSpec {
                hash,
                dtype: DType::U8,
                shape,
                device,
                producer: "suite".to_owned(),
                label: String::new(),
                metadata: None,
            }
        })
        .collect();
    let mut source = Numbered(0);
    let mut lease_all = |store: &Arc<dyn Store>| {
        let leases = store.blobs(&specs, &mut source, &store.holder("m")).expect("blobs");
        for (index, lease) in leases.iter().enumerate() {
            assert!(lease.device() == device && holds(lease, index as u8), "blob {index}");
        }
        leases
    };
    let leases = [lease_all(&one), lease_all(&other)];
    assert_eq!(source.0, 3, "the second client finds all blobs");
    assert_eq!(on(&one, device).memory_usage_bytes, taken(device, 3 * LARGE / 2));
    // On the host they are other tensors.
    let host: Vec<BlobSpec> = specs.iter().map(|spec| BlobSpec { device: Device::Cpu, ..spec.clone() }).collect();
    let on_host = one.blobs(&host, &mut source, &one.holder("m")).expect("blobs");
    assert!(on_host.iter().all(|lease| lease.bytes().is_some()) && source.0 == 6);
    drop((leases, on_host));
}

fn each_device_has_its_own_budget(device: Device, open: &OpenStore) {
    let (one, other) = (open(), open());
    let large = taken(device, LARGE);
    let bytes = large as usize;
    drop(put(&*one, cached("on the host", 3 * LARGE, 1), 1));
    let held = put(&*one, cached("held", bytes, 1).on(device), 2);
    drop(put(&*one, cached("free", 2 * bytes, 1).on(device), 3));
    let stats = on(&other, device);
    assert_eq!((stats.memory_usage_bytes, stats.max_memory_bytes), (3 * large, Some(4 * large)));
    let error = other.reserve(spec("more", 4 * bytes).on(device), &other.holder("m")).expect_err("one tensor is held");
    assert_eq!(error.kind(), ErrorKind::OverBudget);
    for part in ["more", "writer", &device.to_string()] {
        assert!(error.to_string().contains(part), "{part:?} is not in {error}");
    }
    let more = || other.reserve(spec("more", 3 * bytes).on(device), &other.holder("m"));
    until("the free tensor is evicted", || more().is_ok());
    let mut left: Vec<String> = other.diagnostics().tensors.into_iter().map(|tensor| tensor.name).collect();
    left.sort();
    assert_eq!(left, ["held", "on the host"], "host memory is of no use to the device");
    assert_eq!(on(&other, device).memory_usage_bytes, large);
    assert_eq!(held.copy_to_host().expect("copy")[0], 2);
    other.prefault(device, LARGE, 2).expect("prefault");
    let absent = Device::Fake(u32::MAX);
    let error = other.reserve(spec("x", 1).on(absent), &other.holder("m")).expect_err("there is no such device");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains(&absent.to_string()), "{error}");
    let error = other.prefault(absent, LARGE, 2).expect_err("there is no such device");
    assert!(error.to_string().contains(&absent.to_string()), "{error}");
}
