//! Tensors in the memory of a device, which the daemon keeps and cannot read.

use crate::support::processes::{Processes, content, settles_empty};
use crate::support::{Running, put, spec, until};
use cotensor_client::ClientStore;
use cotensor_client::protocol as p;
use cotensor_core::testing::FakeDevice;
use cotensor_core::{ContentHash, DType, Device, ErrorKind, Memory};
use cotensor_memory::SimulatedMemory;
use cotensor_store::{
    BlobSource, BlobSpec, BlobStore, CopyReason, DeviceStats, Lease, MemoryControl, Retention, StoreReports,
    TensorSpec, TensorStore,
};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const DEVICE: Device = Device::Fake(0);
const MIB: usize = 1 << 20;

fn connect(socket: &Path, client: &str) -> Arc<ClientStore> {
    connect_with(socket, client, Arc::new(SimulatedMemory::default()))
}

fn connect_with(socket: &Path, client: &str, memory: Arc<dyn Memory>) -> Arc<ClientStore> {
    ClientStore::builder(client).socket(socket).memory(memory).connect().unwrap()
}

fn with_device(max_bytes: u64) -> Running {
    Running::start(|config| config.max_device_bytes = [(DEVICE, max_bytes)].into())
}

fn on_device(name: &str, bytes: usize, retention: Retention) -> TensorSpec {
    TensorSpec { retention, ..spec(name, bytes).on(DEVICE) }
}

const KEPT: Retention = Retention::Cached { recompute: Duration::ZERO };

fn put_on_device(store: &ClientStore, name: &str, bytes: &[u8], retention: Retention) -> Lease {
    let mut reservation = store.reserve(on_device(name, bytes.len(), retention), &store.holder("")).unwrap();
    reservation.write(bytes, CopyReason::DeviceTransfer).unwrap();
    reservation.publish().unwrap()
}

fn stats_of(store: &ClientStore, device: Device) -> DeviceStats {
    let name = device.to_string();
    store.stats().devices.into_iter().find(|stats| stats.device == name).unwrap()
}

#[test]
fn device_tensors_and_leases_outlive_the_server_and_their_producer() {
    let processes = Processes::start_with(|_| vec![format!("--device={DEVICE}={}", 4 * MIB).into()]);
    let (one, two) = (connect(&processes.socket, "one"), connect(&processes.socket, "two"));
    let kept = put_on_device(&one, "kept", &content(1, MIB), KEPT).id();
    let held = put_on_device(&one, "held", &content(2, MIB), Retention::WhileLeased);
    let read = two.get("held", &two.holder("")).unwrap();
    processes.kill_server();

    assert_eq!(two.get("kept", &two.holder("")).unwrap().id(), kept);
    drop((held, one));
    let three = connect(&processes.socket, "three");
    let found = three.lease(read.id(), &three.holder("")).unwrap();
    assert_eq!((found.device(), found.copy_to_host().unwrap()), (DEVICE, content(2, MIB)));
    assert_eq!(three.get("kept", &three.holder("")).unwrap().copy_to_host().unwrap(), content(1, MIB));
    let stats = stats_of(&three, DEVICE);
    assert_eq!((stats.tensors, stats.memory_usage_bytes), (2, 2 * MIB as u64));
    let error = three.reserve(on_device("more", 3 * MIB + 1, KEPT), &three.holder("")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OverBudget, "{error}");
    assert!(error.to_string().contains(&DEVICE.to_string()), "{error}");
    // The next server has the tensor, too.
    processes.kill_server();
    drop(put_on_device(&three, "kept", &content(3, MIB), KEPT));
    assert_eq!(two.get("kept", &two.holder("")).unwrap().copy_to_host().unwrap(), content(3, MIB));
    drop((found, read));
    until("the leased tensor is freed", || two.get("held", &two.holder("")).is_err());
    two.remove("kept").unwrap();
    drop((two, three));
    settles_empty(&processes);
}

#[test]
fn unknown_devices_are_refused() {
    let running = with_device(MIB as u64);
    let other = connect_with(&running.socket, "other", Arc::new(SimulatedMemory::new(7)));
    let spec = spec("x", 100).on(Device::Fake(7));
    let error = other.reserve(spec.clone(), &other.holder("")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "the daemon has no such device");
    assert!(error.to_string().contains("no memory on fake:7; it has cpu, fake:0"), "{error}");
    let blob = BlobSpec {
        hash: ContentHash::from_bytes([0; 32]),
        dtype: DType::U8,
        shape: vec![1],
        device: Device::Fake(7),
        producer: String::new(),
        label: String::new(),
        metadata: None,
    };
    let error = other.blobs(&[blob], &mut Fill(0), &other.holder("")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");

    let (host, device) = (running.connect("host"), connect(&running.socket, "device"));
    let error = host.reserve(spec.clone().on(DEVICE), &host.holder("")).unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::Unsupported, Some("x")), "the client has no such device");
    drop(put_on_device(&device, "x", &[1; 100], KEPT));
    let error = host.get("x", &host.holder("")).unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::Unsupported, Some("x")));
    assert!(error.to_string().contains("no memory on fake:0; it has cpu"), "{error}");
    until("the refused lease is released", || device.optimize().freed_tensors == ["x"]);
}

#[test]
fn budget_and_prefaulting_are_by_device() {
    let running = with_device(MIB as u64);
    let store = connect(&running.socket, "user");
    for device in [DEVICE, Device::Cpu] {
        let error = store.limit_memory(device, 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "the daemon has the budget");
        assert!(error.to_string().contains(&device.to_string()), "{error}");
    }
    assert_eq!(store.prefault(Device::Cpu, MIB, 2).unwrap(), 2);
    assert_eq!(store.prefault(DEVICE, MIB, 2).unwrap(), 0, "this device has no prefaulted memory");
    assert_eq!(store.prefault(Device::Fake(7), MIB, 2).unwrap_err().kind(), ErrorKind::Unsupported);
    // A large tensor of the host takes nothing from the device, and the other way round.
    let (host, device) = (put(&*store, "host", &[1; 2 * MIB]), put_on_device(&store, "device", &[2; MIB], KEPT));
    let (cpu, fake) = (stats_of(&store, Device::Cpu), stats_of(&store, DEVICE));
    assert_eq!((cpu.memory_usage_bytes, cpu.max_memory_bytes, cpu.tensors), (2 * MIB as u64, None, 1));
    assert_eq!((fake.memory_usage_bytes, fake.max_memory_bytes, fake.tensors), (MIB as u64, Some(MIB as u64), 1));
    let error = store.reserve(on_device("more", 1, KEPT), &store.holder("")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OverBudget);
    assert!(error.to_string().contains("fake:0"), "{error}");
    drop((host, device));
}

#[test]
fn descriptors_that_are_no_memory_of_the_device_are_refused() {
    let running = Running::start(|config| {
        config.max_device_bytes = [(DEVICE, u64::MAX), (Device::Cuda(0), u64::MAX)].into();
    });
    let (client, _) = raw_client(&running.socket);
    let memory = |len| -> OwnedFd {
        let segment = SimulatedMemory::default().reserve(len).unwrap().freeze().unwrap();
        segment.fd().unwrap().try_clone_to_owned().unwrap()
    };
    let socket = || OwnedFd::from(std::os::unix::net::UnixStream::pair().unwrap().0);
    let folder = || OwnedFd::from(std::fs::File::open("/").unwrap());
    let wrong = [
        (DEVICE, memory(99)),
        (DEVICE, socket()),
        (DEVICE, folder()),
        (Device::Cuda(0), memory(100)),
        (Device::Cuda(0), socket()),
    ];
    for (device, fd) in wrong {
        let error = publish(&client, device, fd).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{device}: {error}");
        assert!(error.to_string().contains(&device.to_string()), "{error}");
    }
    // The daemon cannot tell more about a driver's handle than that it is one.
    publish(&client, Device::Cuda(0), OwnedFd::from(std::fs::File::open("/dev/null").unwrap())).unwrap();
    publish(&client, DEVICE, memory(100)).unwrap();
    let slab = p::SlabParams { bytes: 4096, block: false, device: DEVICE, reservation: None };
    let open = |params: p::SlabParams, fd| client.call::<p::OpenSlab>(&params, vec![fd], None).map(drop);
    for fd in [memory(4095), socket(), folder()] {
        assert_eq!(open(slab.clone(), fd).unwrap_err().kind(), ErrorKind::Refused);
    }
    let error = open(p::SlabParams { block: true, ..slab }, memory(4096)).unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::Unsupported, Some("device")), "{error}");
    let error = open(p::SlabParams { device: Device::Cuda(7), ..slab }, memory(4096)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "a device without a budget: {error}");
    open(slab, memory(4096)).unwrap();
}

#[test]
fn slab_takes_the_place_of_a_reservation_of_its_length() {
    let running = with_device(MIB as u64);
    let (client, _) = raw_client(&running.socket);
    let used = || running.daemon.store().stats().devices[1].memory_usage_bytes;
    let memory = |len| -> OwnedFd {
        let segment = SimulatedMemory::default().reserve(len).unwrap().freeze().unwrap();
        segment.fd().unwrap().try_clone_to_owned().unwrap()
    };
    let reserve = |len| {
        let params = p::ReserveParams { spec: p::Spec::from(&spec("x", len).on(DEVICE)), holder: String::new() };
        Some(client.call::<p::Reserve>(&params, Vec::new(), None).unwrap().0.reservation)
    };
    let open = |params: p::SlabParams, len| client.call::<p::OpenSlab>(&params, vec![memory(len)], None);
    let slab = p::SlabParams { bytes: MIB as u64, block: false, device: DEVICE, reservation: None };
    for wrong in [
        p::SlabParams { bytes: 4096, ..slab },
        p::SlabParams { device: Device::Cpu, ..slab },
        p::SlabParams { block: true, ..slab },
    ] {
        let error = open(p::SlabParams { reservation: reserve(MIB), ..wrong }, MIB).unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::Invalid, Some("reservation")), "{error}");
        assert_eq!(used(), 0, "an error ends the reservation");
    }
    let error = open(p::SlabParams { reservation: Some(77), ..slab }, MIB).unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::NotFound, Some("reservation")), "{error}");
    // The budget has room for one of both only.
    let opened = open(p::SlabParams { reservation: reserve(MIB), ..slab }, MIB).unwrap().0;
    assert_eq!((used(), opened.live), (MIB as u64, vec![]));
    client.call::<p::CloseSlab>(&p::CloseSlabParams { slab: opened.slab }, Vec::new(), None).unwrap();
    assert_eq!(used(), 0);
}

fn raw_client(socket: &Path) -> (cotensor_client::Connection, p::HelloResult) {
    let connection = cotensor_client::connect(socket, Box::new(|_, _, _| {})).unwrap();
    let hello = p::HelloParams { protocol: p::PROTOCOL, client: "raw".to_owned(), ..Default::default() };
    let (hello, _) = connection.call::<p::Hello>(&hello, Vec::new(), None).unwrap();
    (connection, hello)
}

fn publish(client: &cotensor_client::Connection, device: Device, fd: OwnedFd) -> cotensor_core::Result<p::Published> {
    let params = p::ReserveParams { spec: p::Spec::from(&spec("x", 100).on(device)), holder: String::new() };
    let (reserved, _) = client.call::<p::Reserve>(&params, Vec::new(), None)?;
    let params = p::PublishParams {
        reservation: reserved.reservation,
        ticket: None,
        expected: None,
        copies: Vec::new(),
        again: false,
    };
    Ok(client.call::<p::Publish>(&params, vec![fd], None)?.0)
}

#[test]
fn memory_without_descriptors_is_not_published() {
    let running = with_device(MIB as u64);
    let store = connect_with(&running.socket, "user", Arc::new(FakeDevice::default()));
    let reservation = store.reserve(on_device("x", MIB, KEPT), &store.holder("")).unwrap();
    let error = reservation.publish().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("fake:0"), "{error}");
    until("the reservation is cancelled", || stats_of(&store, DEVICE).memory_usage_bytes == 0);
}

#[test]
fn device_tensors_are_evicted_where_host_tensors_are_spilled() {
    let folder = tempfile::tempdir().unwrap();
    let running = Running::start(|config| {
        config.max_device_bytes = [(DEVICE, 2 * MIB as u64)].into();
        config.spill = Some(folder.path().join("spill"));
    });
    let store = connect(&running.socket, "user");
    drop(put_on_device(&store, "old", &content(1, MIB), KEPT));
    until("the new tensor fits", || store.reserve(on_device("new", 2 * MIB, KEPT), &store.holder("")).is_ok());
    let stats = store.stats();
    assert_eq!((stats.evictions, stats.spills), (1, 0), "the daemon cannot read the device");
}

struct Fill(u8);

impl BlobSource for Fill {
    fn fill(&mut self, _: usize, target: &mut [u8]) -> cotensor_core::Result<()> {
        target.fill(self.0);
        Ok(())
    }
}

#[test]
fn client_checks_the_hashes_of_blobs_on_a_device() {
    let running = with_device(u64::MAX);
    let (one, two) = (connect(&running.socket, "one"), connect(&running.socket, "two"));
    let hash = ContentHash::of(&[1; MIB]);
    let blob = BlobSpec {
        hash,
        dtype: DType::U8,
        shape: vec![MIB],
        device: DEVICE,
        producer: String::new(),
        label: String::new(),
        metadata: None,
    };
    let error = one.blobs(std::slice::from_ref(&blob), &mut Fill(2), &one.holder("")).unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::Refused, Some("blobs")), "{error}");
    let leases = two.blobs(&[blob], &mut Fill(1), &two.holder("")).unwrap();
    assert_eq!(leases[0].copy_to_host().unwrap(), [1; MIB]);
}
