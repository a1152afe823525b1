//! Tensors in the memory of CUDA devices, on a fake driver: kills, failures and budgets.

use crate::support::processes::{Processes, content, settles_empty, signal, start_command, test_command};
use crate::support::{Running, spec, until};
use cotensor_client::ClientStore;
use cotensor_core::{Device, ErrorKind, Kind, Memory};
use cotensor_fake_cuda::{FakeCuda, ILLEGAL_ADDRESS};
use cotensor_memory::{CudaDriver, CudaMemory, DRIVER_VARIABLE};
use cotensor_store::{CopyReason, Lease, Retention, StoreReports, TensorSpec, TensorStore};
use rustix::process::Signal;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

pub(crate) const DEVICE: Device = Device::Cuda(0);
pub(crate) const MIB: usize = 1 << 20;
pub(crate) const KEPT: Retention = Retention::Cached { recompute: Duration::ZERO };
/// Variables of a child: the daemon's socket, the driver's library, and what the child does.
const SOCKET: &str = "COTENSOR_TEST_SOCKET";
const LIBRARY: &str = "COTENSOR_TEST_CUDA";
const STEP: &str = "COTENSOR_TEST_STEP";

pub(crate) fn memory_of(library: &Path) -> Arc<dyn Memory> {
    let driver = CudaDriver::load(library).unwrap();
    Arc::new(CudaMemory::all(&driver).unwrap().remove(0))
}

pub(crate) fn connect(socket: &Path, client: &str, memory: &Arc<dyn Memory>) -> Arc<ClientStore> {
    ClientStore::builder(client).socket(socket).memory(Arc::clone(memory)).connect().unwrap()
}

pub(crate) fn on_device(name: &str, bytes: usize, retention: Retention) -> TensorSpec {
    TensorSpec { retention, ..spec(name, bytes).on(DEVICE) }
}

pub(crate) fn put(store: &ClientStore, name: &str, bytes: &[u8], retention: Retention) -> Lease {
    let mut reservation = store.reserve(on_device(name, bytes.len(), retention), &store.holder("")).unwrap();
    reservation.write(bytes, CopyReason::DeviceTransfer).unwrap();
    reservation.publish().unwrap()
}

pub(crate) fn get(store: &ClientStore, name: &str) -> Lease {
    store.get(name, &store.holder("")).unwrap()
}

pub(crate) fn used(store: &ClientStore) -> u64 {
    store.stats().devices.into_iter().find(|stats| stats.device == DEVICE.to_string()).unwrap().memory_usage_bytes
}

pub(crate) fn with_device(max_bytes: usize) -> Running {
    Running::start(|config| config.max_device_bytes = [(DEVICE, max_bytes as u64)].into())
}

pub(crate) fn daemon(max_bytes: usize) -> Processes {
    Processes::start_with(|_| vec![format!("--device={DEVICE}={max_bytes}").into()])
}

/// The process that the tests kill.
#[test]
#[ignore = "the process that the other tests kill"]
fn child() {
    let variable = |name| std::env::var_os(name).unwrap();
    let socket = variable(SOCKET);
    let connect = || connect(socket.as_ref(), "child", &memory_of(variable(LIBRARY).as_ref()));
    let _held = match variable(STEP).to_str().unwrap() {
        "produces" => {
            let store = connect();
            drop(put(&store, "kept", &content(1, 3 * MIB), KEPT));
            let reserved = store.reserve(on_device("unpublished", 5 * MIB, KEPT), &store.holder("")).unwrap();
            (Some(put(&store, "held", &content(2, MIB), Retention::WhileLeased)), Some(reserved))
        }
        "produces in a slab" => {
            let store = connect();
            drop(put(&store, "kept", &content(1, 1000), KEPT));
            let reserved = store.reserve(on_device("unpublished", 5000, KEPT), &store.holder("")).unwrap();
            (Some(put(&store, "held", &content(2, 2000), Retention::WhileLeased)), Some(reserved))
        }
        "reserves in a slab" => {
            let store = connect();
            (None, Some(store.reserve(on_device("unpublished", 5000, KEPT), &store.holder("")).unwrap()))
        }
        "releases all in a slab" => {
            let store = connect();
            drop(put(&store, "gone", &content(1, 1000), Retention::WhileLeased));
            // The slab of this client stays open for some seconds.
            std::mem::forget(store);
            (None, None)
        }
        "reads" => (Some(get(&connect(), "kept")), None),
        "reads by default" => {
            let store = ClientStore::connect(Some(socket.as_ref()), "child").unwrap();
            let error = store.reserve(spec("y", 1).on(Device::Cuda(7)), &store.holder("")).unwrap_err();
            assert!(error.to_string().contains("no memory on cuda:7; it has cpu, cuda:0"), "{error}");
            let found = get(&store, "kept");
            assert!(found.copy_to_host().unwrap() == content(1, 100));
            (Some(found), None)
        }
        other => panic!("{other}"),
    };
    println!("\nreached");
    std::io::stdout().flush().unwrap();
    loop {
        std::thread::park();
    }
}

/// The command of [`child`] for `step`. It prints "reached" when that is done.
pub(crate) fn command(processes: &Processes, fake: &FakeCuda, step: &str) -> Command {
    let library = fake.library();
    let mut command = test_command("cuda::child");
    command.env(SOCKET, &processes.socket).env(LIBRARY, &library).env(DRIVER_VARIABLE, &library).env(STEP, step);
    command
}

/// Starts [`child`], and waits until it has done `step`.
pub(crate) fn start(processes: &Processes, fake: &FakeCuda, step: &str) -> Child {
    start_command(command(processes, fake, step), |line| line == "reached")
}

pub(crate) fn kill(mut child: Child) {
    signal(child.id(), Signal::KILL);
    child.wait().unwrap();
}

#[test]
fn tensors_outlive_producer_consumer_and_server() {
    let fake = FakeCuda::start().unwrap();
    let processes = daemon(64 * MIB);
    let memory = memory_of(&fake.library());
    let producer = start(&processes, &fake, "produces");
    let store = connect(&processes.socket, "reader", &memory);
    let held = get(&store, "held");
    assert_eq!((used(&store), fake.used_bytes(0).unwrap()), (12 << 20, 12 << 20));
    kill(producer);
    until("the reservation of the dead producer is given back", || used(&store) == 6 << 20);
    assert_eq!(fake.used_bytes(0).unwrap(), 6 << 20, "the device has its memory again, too");
    assert!(
        held.copy_to_host().unwrap() == content(2, MIB)
            && get(&store, "kept").copy_to_host().unwrap() == content(1, 3 * MIB)
    );

    let consumer = start(&processes, &fake, "reads");
    processes.kill_server();
    assert!(get(&store, "kept").copy_to_host().unwrap() == content(1, 3 * MIB), "the next server has the descriptors");
    assert!(held.copy_to_host().unwrap() == content(2, MIB));
    for process in [processes.supervisor(), processes.server()] {
        let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
        assert!(!maps.contains("libcuda"), "a process of the daemon has a driver: {maps}");
    }
    store.remove("kept").unwrap();
    assert_eq!(fake.used_bytes(0).unwrap(), 6 << 20, "a consumer has a lease");
    kill(consumer);
    until("the lease of the dead consumer ends", || fake.used_bytes(0).unwrap() == 2 << 20);
    assert_eq!(used(&store), 2 << 20);
    drop(held);
    until("the device is empty", || fake.used_bytes(0).unwrap() == 0 && used(&store) == 0);
    drop(store);
    settles_empty(&processes);
}

#[test]
fn tensor_is_intact_after_all_clients_and_the_server_were_killed() {
    let fake = FakeCuda::start().unwrap();
    let processes = daemon(64 * MIB);
    kill(start(&processes, &fake, "produces"));
    processes.kill_server();
    let memory = memory_of(&fake.library());
    let store = connect(&processes.socket, "reader", &memory);
    until("only the kept tensor is left", || used(&store) == 4 << 20);
    assert_eq!(get(&store, "kept").copy_to_host().unwrap(), content(1, 3 * MIB));
}

#[test]
fn clients_find_the_installed_driver() {
    let fake = FakeCuda::start().unwrap();
    let processes = daemon(64 * MIB);
    let store = connect(&processes.socket, "producer", &memory_of(&fake.library()));
    drop(put(&store, "kept", &content(1, 100), KEPT));
    kill(start(&processes, &fake, "reads by default"));
}

#[test]
fn budget_counts_what_the_device_allocates() {
    let fake = FakeCuda::start().unwrap();
    let running = with_device(6 * MIB);
    let store = connect(&running.socket, "user", &memory_of(&fake.library()));
    let held = [put(&store, "a", &[1; MIB], KEPT), put(&store, "b", &[2; 2 * MIB + 1], KEPT)];
    assert_eq!((used(&store), fake.used_bytes(0).unwrap()), (6 << 20, 6 << 20));
    for bytes in [1, MIB] {
        let error = store.reserve(on_device("c", bytes, KEPT), &store.holder("")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OverBudget, "{error}");
        let text = error.to_string();
        assert!(
            text.contains("cuda:0 budget") && text.contains(&format!("user[{}] holds 3.00 MiB", std::process::id())),
            "{text}"
        );
    }
    drop(held);
    until("unleased tensors are evicted", || store.reserve(on_device("c", MIB, KEPT), &store.holder("")).is_ok());
}

#[test]
fn budget_of_a_client_counts_what_the_device_allocates() {
    let fake = FakeCuda::start().unwrap();
    let running = Running::start(|config| {
        config.max_device_bytes = [(DEVICE, 64 << 20)].into();
        config.max_client_bytes = 5 << 20;
    });
    let memory = memory_of(&fake.library());
    let store = connect(&running.socket, "user", &memory);
    let made = put(&store, "a", &[1; MIB], KEPT);
    let reserved = store.reserve(on_device("b", MIB, KEPT), &store.holder("")).unwrap();
    let refused = |error: cotensor_core::Error| {
        assert_eq!(error.kind(), ErrorKind::OverBudget, "{error}");
        assert!(error.to_string().contains("4.00 MiB, 2.00 MiB more"), "{error}");
    };
    refused(store.reserve(on_device("c", MIB, KEPT), &store.holder("")).unwrap_err());
    drop((made, reserved.publish().unwrap()));
    // Leases of tensors that others made take as much.
    let other = connect(&running.socket, "other", &memory);
    let held = ["a", "b"].map(|name| get(&other, name));
    drop(put(&store, "c", &[3; MIB], KEPT));
    refused(other.get("c", &other.holder("")).unwrap_err());
    drop(held);
    until("a lease has room", || other.get("c", &other.holder("")).is_ok());
}

#[test]
fn whole_device_is_used_again_and_again() {
    let fake = FakeCuda::start().unwrap();
    fake.set_memory_bytes(4 << 20).unwrap();
    fake.set_frees_late(true).unwrap();
    let running = with_device(4 * MIB);
    let memory = memory_of(&fake.library());
    let (producer, consumer) = (connect(&running.socket, "one", &memory), connect(&running.socket, "two", &memory));
    for number in 0..20 {
        // The budget waits for the former tensor; the device has its memory later.
        let made = put(&producer, "x", &content(number, 3 * MIB), Retention::WhileLeased);
        let found = get(&consumer, "x");
        drop(made);
        assert!(found.copy_to_host().unwrap() == content(number, 3 * MIB));
        drop(found);
        until("the budget has room", || used(&producer) == 0);
    }
}

#[test]
fn tensors_that_are_filled_at_once_are_not_cleared_first() {
    let fake = FakeCuda::start().unwrap();
    let running = with_device(64 * MIB);
    let store = connect(&running.socket, "user", &memory_of(&fake.library()));
    fake.fail("cuMemsetD8Async", ILLEGAL_ADDRESS).unwrap();
    for kind in [Kind::Weight, Kind::Other] {
        let spec = TensorSpec { kind, ..on_device("x", 2 * MIB, KEPT) };
        let mut reservation = store.reserve_to_fill(spec, &store.holder("")).unwrap();
        reservation.write(&content(1, 2 * MIB), CopyReason::DeviceTransfer).unwrap();
        assert!(reservation.publish().unwrap().copy_to_host().unwrap() == content(1, 2 * MIB), "{kind:?}");
    }
}

#[test]
fn failed_reservations_and_publications_leave_nothing() {
    let fake = FakeCuda::start().unwrap();
    let running = with_device(1 << 30);
    let store = connect(&running.socket, "user", &memory_of(&fake.library()));
    let empty = || until("nothing is left", || used(&store) == 0 && fake.used_bytes(0).unwrap() == 0);
    // Another program has the memory of the device, which the budget does not know.
    fake.set_memory_bytes(4 << 20).unwrap();
    let error = store.reserve(on_device("x", 5 * MIB, KEPT), &store.holder("")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OverBudget);
    assert!(error.to_string().contains("cuda:0 has 4194304 of 4194304 bytes left, not 6291456"), "{error}");
    assert!(error.to_string().contains("tensors of the store have 6.00 MiB there"), "{error}");
    fake.set_memory_bytes(0).unwrap();
    let error = store.reserve(on_device("small", 5, KEPT), &store.holder("")).unwrap_err();
    assert!(error.to_string().contains("tensors of the store have 2.00 MiB there"), "{error}");
    fake.set_memory_bytes(4 << 20).unwrap();
    empty();
    for function in ["cuCtxSynchronize", "cuMemExportToShareableHandle"] {
        let reservation = store.reserve(on_device("x", MIB, KEPT), &store.holder("")).unwrap();
        reservation.device_address().unwrap();
        fake.fail(function, ILLEGAL_ADDRESS).unwrap();
        let error = reservation.publish().unwrap_err();
        assert!(error.to_string().contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{error}");
        fake.repair().unwrap();
        empty();
    }
    drop(put(&store, "x", &content(3, MIB), KEPT));
    // A reader whose context is lost gets an error; its lease ends, and others read the tensor.
    let reader = connect(&running.socket, "reader", &memory_of(&fake.library()));
    fake.fail("cuMemImportFromShareableHandle", ILLEGAL_ADDRESS).unwrap();
    let error = reader.get("x", &reader.holder("")).unwrap_err();
    assert!(error.to_string().contains("must be started again"), "{error}");
    fake.repair().unwrap();
    assert_eq!(get(&store, "x").copy_to_host().unwrap(), content(3, MIB));
    store.remove("x").unwrap();
    empty();
}

/// Descriptors and mappings of this process.
fn open() -> (usize, usize) {
    let mappings = std::fs::read_to_string("/proc/self/maps").unwrap();
    let reserved = mappings.lines().filter(|line| line.contains(" ---p ")).count();
    (std::fs::read_dir("/proc/self/fd").unwrap().count(), reserved)
}

#[test]
fn ten_thousand_cycles_leak_nothing() {
    let fake = FakeCuda::start().unwrap();
    let running = with_device(1 << 30);
    let memory = memory_of(&fake.library());
    let (producer, consumer) = (connect(&running.socket, "one", &memory), connect(&running.socket, "two", &memory));
    let mut cycle = |number: u64| {
        let spec = on_device("x", 100, Retention::WhileLeased);
        // Every second tensor has memory of its own, the others lie in a slab.
        let reserve = if number.is_multiple_of(2) { ClientStore::reserve_aliased } else { ClientStore::reserve };
        let mut reservation = reserve(&producer, spec, &producer.holder("")).unwrap();
        reservation.write(&content(number, 100), CopyReason::DeviceTransfer).unwrap();
        let made = reservation.publish().unwrap();
        let found = get(&consumer, "x");
        drop(made);
        // Every third one has an address that other code uses.
        if number.is_multiple_of(3) {
            found.segment().device_address().unwrap();
        }
        assert!(found.copy_to_host().unwrap() == content(number, 100));
    };
    let empty = || until("the device is empty", || used(&producer) == 0 && fake.used_bytes(0).unwrap() == 0);
    (0..10).for_each(&mut cycle);
    empty();
    let before = open();
    (10..10_010).for_each(&mut cycle);
    empty();
    // The daemon is in this process, too.
    until("descriptors and addresses come back", || {
        let (descriptors, mappings) = open();
        descriptors <= before.0 && mappings <= before.1
    });
}
