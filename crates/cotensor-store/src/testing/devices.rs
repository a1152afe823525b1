//! Tensors in the memory of a device, whose bytes the host cannot address.

use super::fixtures::{LARGE, Place, cached, ends_empty, eventually, put, spec};
use super::groups::device_group_is_one_tensor;
use crate::{CopyReason, DeviceStats, Store};
use cotensor_core::{Device, ErrorKind, Slice};
use std::sync::Arc;

/// Runs the conformance suite for a device: `make` gives an empty store with room for that many bytes on `device`, and
/// without a limit for host memory.
///
/// # Panics
/// When the store breaks a promise of [`Store`].
pub fn device_conformance(device: Device, make: &dyn Fn(u64) -> Place) {
    println!("device tensor is read by counted copies");
    device_tensor_is_read_by_counted_copies(device, &make(u64::MAX));
    println!("device tensor has versions, views and reports");
    device_tensor_has_versions_views_and_reports(device, &make(u64::MAX));
    println!("device group is one tensor");
    device_group_is_one_tensor(device, &make(u64::MAX));
    println!("each device has its own budget");
    each_device_has_its_own_budget(device, &make(4 * LARGE as u64));
}

fn on(store: &Arc<dyn Store>, device: Device) -> DeviceStats {
    let name = device.to_string();
    store.stats().devices.into_iter().find(|stats| stats.device == name).expect("the device is in the report")
}

fn transferred(store: &Arc<dyn Store>) -> u64 {
    let copies = store.stats().copies;
    copies.iter().find(|copies| copies.reason == CopyReason::DeviceTransfer.name()).map_or(0, |copies| copies.bytes)
}

fn device_tensor_is_read_by_counted_copies(device: Device, open: &Place) {
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
    eventually("the write is counted", || transferred(&watcher) == LARGE as u64);
    assert!(found.copy_to_host().expect("copy") == content);
    eventually("the read is counted", || transferred(&watcher) == 2 * LARGE as u64);
    assert_eq!(made.identity(), found.identity());
    drop((made, found, one, other));
    ends_empty(&*watcher);
    assert_eq!(on(&watcher, device).memory_usage_bytes, 0);
}

fn device_tensor_has_versions_views_and_reports(device: Device, open: &Place) {
    let (one, other) = (open(), open());
    let first = put(&*one, spec("x", LARGE).on(device), 1);
    let second = put(&*other, spec("x", LARGE).on(device), 2);
    assert_eq!((second.id().slot, second.id().version), (first.id().slot, first.id().version + 1));
    assert_eq!((first.copy_to_host().expect("copy")[0], second.copy_to_host().expect("copy")[0]), (1, 2));
    let view = second.view(&[Slice { start: 10, len: 20, step: 1 }]).expect("view");
    assert_eq!((view.shape(), view.bytes()), (&[20][..], None));
    drop((first, second));
    eventually("the older version is freed", || on(&one, device).tensors == 1);
    assert_eq!(on(&other, device).memory_usage_bytes, LARGE as u64, "the view holds its tensor");
    let info = one.diagnostics().tensors.remove(0);
    assert_eq!((&*info.device, &*info.memory, info.bytes), (&*device.to_string(), "device", LARGE as u64));
    let host = other.stats();
    assert_eq!((host.memory_usage_bytes, host.total_tensors), (0, 1), "no host memory is taken");
    drop(view);
    eventually("the tensor is freed", || on(&one, device).memory_usage_bytes == 0);
    // A name moves from one memory to the other with its next version.
    let kept = put(&*one, spec("x", LARGE).on(device), 3);
    drop(put(&*one, cached("x", LARGE, 1), 4));
    assert_eq!(other.get("x", &other.holder("reader")).expect("get").device(), Device::Cpu);
    assert_eq!(kept.copy_to_host().expect("copy")[0], 3);
}

fn each_device_has_its_own_budget(device: Device, open: &Place) {
    let (one, other) = (open(), open());
    drop(put(&*one, cached("on the host", 3 * LARGE, 1), 1));
    let held = put(&*one, cached("held", LARGE, 1).on(device), 2);
    drop(put(&*one, cached("free", 2 * LARGE, 1).on(device), 3));
    let stats = on(&other, device);
    assert_eq!((stats.memory_usage_bytes, stats.max_memory_bytes), (3 * LARGE as u64, Some(4 * LARGE as u64)));
    let error = other.reserve(spec("more", 4 * LARGE).on(device), &other.holder("m")).expect_err("one tensor is held");
    assert_eq!(error.kind(), ErrorKind::OverBudget);
    for part in ["more", "writer", &device.to_string()] {
        assert!(error.to_string().contains(part), "{part:?} is not in {error}");
    }
    let more = || other.reserve(spec("more", 3 * LARGE).on(device), &other.holder("m"));
    eventually("the free tensor is evicted", || more().is_ok());
    let mut left: Vec<String> = other.diagnostics().tensors.into_iter().map(|tensor| tensor.name).collect();
    left.sort();
    assert_eq!(left, ["held", "on the host"], "host memory is of no use to the device");
    assert_eq!(on(&other, device).memory_usage_bytes, LARGE as u64);
    assert_eq!(held.copy_to_host().expect("copy")[0], 2);
    let absent = Device::Fake(u32::MAX);
    let error = other.reserve(spec("x", 1).on(absent), &other.holder("m")).expect_err("there is no such device");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains(&absent.to_string()), "{error}");
}
