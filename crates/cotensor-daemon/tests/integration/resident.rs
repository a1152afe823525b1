//! Copies of a published tensor on a device that programs share: programs that are killed at each step, on a simulated device and on a
//! fake driver.

use crate::support::processes::{Processes, content, settles_empty, signal, start_test};
use crate::support::{spec, until};
use cotensor_client::ClientStore;
use cotensor_core::{Device, Memory};
use cotensor_fake_cuda::FakeCuda;
use cotensor_memory::SimulatedMemory;
use cotensor_sharing::ResidentCopy;
use cotensor_store::{Claim, ComputationStore, CopyReason, Lease, Retention, StoreReports, TensorSpec, TensorStore};
use rustix::process::Signal;
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;

const MIB: usize = 1 << 20;
/// A part of the tensor.
const BYTES: Range<usize> = 100..100 + 3 * MIB;
const WAIT: Duration = Duration::from_secs(60);
/// Variables of a child: the daemon's socket, the driver's library or nothing, and what the child does.
const SOCKET: &str = "COTENSOR_TEST_SOCKET";
const LIBRARY: &str = "COTENSOR_TEST_CUDA";
const STEP: &str = "COTENSOR_TEST_STEP";

fn memory_of(fake: Option<&Path>) -> Arc<dyn Memory> {
    fake.map_or_else(|| Arc::new(SimulatedMemory::default()) as Arc<dyn Memory>, crate::cuda::memory_of)
}

fn connect(socket: &Path, client: &str, memory: Arc<dyn Memory>) -> Arc<ClientStore> {
    ClientStore::builder(client).socket(socket).memory(memory).connect().unwrap()
}

fn copy(source: &Lease, device: Device) -> ResidentCopy<'_> {
    ResidentCopy { source, bytes: BYTES, device, identity: "test" }
}

/// The process that the tests kill.
#[test]
#[ignore = "the process that the other tests kill"]
fn child() {
    let variable = |name| std::env::var_os(name).unwrap();
    let library = Some(variable(LIBRARY)).filter(|library| !library.is_empty());
    let memory = memory_of(library.as_deref().map(Path::new));
    let device = memory.device();
    let store = connect(variable(SOCKET).as_ref(), "child", memory);
    let (source, holder) = (store.get("model", &store.holder("")).unwrap(), store.holder("child"));
    let copy = copy(&source, device);
    let claimed = || match store.claim(&copy.key(), &holder).unwrap() {
        Claim::Compute(ticket) => ticket,
        Claim::Ready(_) => panic!("another program has copied"),
    };
    let _held = match variable(STEP).to_str().unwrap() {
        "claims" => (Some(claimed()), None, None),
        "copies" => {
            let ticket = claimed();
            let mut reservation = store.reserve(copy.spec(&holder), &holder).unwrap();
            reservation.write(&[1; MIB], CopyReason::DeviceTransfer).unwrap();
            (Some(ticket), Some(reservation), None)
        }
        "publishes" => {
            let made = copy.lease(&*store, &holder, WAIT).unwrap();
            assert_eq!(made.copied_bytes, BYTES.len());
            (None, None, Some(made.lease))
        }
        "leases" => {
            let found = copy.lease(&*store, &holder, WAIT).unwrap();
            assert_eq!(found.copied_bytes, 0);
            (None, None, Some(found.lease))
        }
        other => panic!("{other}"),
    };
    println!("\nreached");
    std::io::stdout().flush().unwrap();
    loop {
        std::thread::park();
    }
}

struct Machine {
    processes: Processes,
    fake: Option<FakeCuda>,
    device: Device,
    store: Arc<ClientStore>,
    source: Lease,
}

impl Machine {
    /// A daemon with memory on a device, and a published tensor.
    fn start(fake: Option<FakeCuda>) -> Self {
        let library = fake.as_ref().map(FakeCuda::library);
        let memory = memory_of(library.as_deref());
        let device = memory.device();
        let processes = Processes::start_with(|_| vec![format!("--device={device}={}", 64 * MIB).into()]);
        let store = connect(&processes.socket, "parent", memory);
        let retention = Retention::Cached { recompute: Duration::ZERO };
        let wanted = TensorSpec { retention, ..spec("model", 4 * MIB) };
        let mut reservation = store.reserve(wanted, &store.holder("parent")).unwrap();
        reservation.write(&content(5, 4 * MIB), CopyReason::Put).unwrap();
        let source = reservation.publish().unwrap();
        Self { processes, fake, device, store, source }
    }

    /// Starts [`child`], and waits until it has done `step`.
    fn child(&self, step: &str) -> Child {
        let library = self.fake.as_ref().map(FakeCuda::library).unwrap_or_default();
        let variables =
            [(SOCKET, self.processes.socket.as_os_str()), (LIBRARY, library.as_os_str()), (STEP, step.as_ref())];
        start_test("resident::child", variables, |line| line == "reached")
    }

    /// Bytes of the device that the store counts.
    fn used(&self) -> u64 {
        let name = self.device.to_string();
        self.store.stats().devices.into_iter().find(|stats| stats.device == name).unwrap().memory_usage_bytes
    }

    fn copy(&self) -> ResidentCopy<'_> {
        copy(&self.source, self.device)
    }

    /// The bytes of one copy on the device.
    fn once(&self) -> u64 {
        self.device.allocated_bytes(BYTES.len() as u64)
    }

    fn holds_it_once(&self, lease: &Lease) {
        assert!(lease.copy_to_host().unwrap() == content(5, 4 * MIB)[BYTES]);
        until("the copy is there once", || self.used() == self.once());
        if let Some(fake) = &self.fake {
            until("the device has it once", || fake.used_bytes(0).unwrap() == self.once());
        }
    }

    fn settles(self) {
        until("the device is empty", || self.used() == 0);
        if let Some(fake) = &self.fake {
            until("the device is empty", || fake.used_bytes(0).unwrap() == 0);
        }
        self.store.remove("model").unwrap();
        drop((self.source, self.store));
        settles_empty(&self.processes);
    }
}

fn kill(mut child: Child) {
    signal(child.id(), Signal::KILL);
    child.wait().unwrap();
}

/// A program is killed that had claimed the copy, or written a part of it; another one waits for it.
fn waiting_program_copies_instead(machine: Machine, step: &str) {
    let killed = machine.child(step);
    let holder = machine.store.holder("parent");
    let made = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| machine.copy().lease(&*machine.store, &holder, WAIT).unwrap());
        kill(killed);
        waiting.join().unwrap()
    });
    assert_eq!(made.copied_bytes, BYTES.len());
    machine.holds_it_once(&made.lease);
    drop(made);
    machine.settles();
}

/// The programs that published a copy and that lease it are killed, and so is the server.
fn copy_stays_with_its_last_program(machine: Machine) {
    let holder = machine.store.holder("parent");
    let producer = machine.child("publishes");
    let reader = machine.child("leases");
    let found = machine.copy().lease(&*machine.store, &holder, WAIT).unwrap();
    assert_eq!(found.copied_bytes, 0);
    machine.holds_it_once(&found.lease);
    kill(producer);
    machine.holds_it_once(&found.lease);
    machine.processes.kill_server();
    machine.holds_it_once(&found.lease);
    let late = machine.child("leases");
    drop(found);
    kill(reader);
    let found = machine.copy().find(&*machine.store, &holder).unwrap().unwrap();
    kill(late);
    machine.holds_it_once(&found);
    drop(found);
    machine.settles();
}

#[test]
fn copy_of_a_killed_claim_is_made_by_the_waiting_program() {
    waiting_program_copies_instead(Machine::start(None), "claims");
}

#[test]
fn unfinished_copy_of_a_killed_program_is_made_by_the_waiting_program() {
    waiting_program_copies_instead(Machine::start(None), "copies");
}

#[test]
fn copy_outlives_its_producer_its_readers_and_the_server() {
    copy_stays_with_its_last_program(Machine::start(None));
}

#[test]
fn unfinished_copy_of_a_killed_program_is_made_by_the_waiting_program_on_cuda() {
    waiting_program_copies_instead(Machine::start(Some(FakeCuda::start().unwrap())), "copies");
}

#[test]
fn copy_outlives_its_producer_its_readers_and_the_server_on_cuda() {
    copy_stays_with_its_last_program(Machine::start(Some(FakeCuda::start().unwrap())));
}
