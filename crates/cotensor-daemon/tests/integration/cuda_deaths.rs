//! Clients that end at any call of the driver, that stop, or that lose the device, and the end of the supervisor: on a fake driver.

use crate::cuda::{KEPT, MIB, command, connect, daemon, get, kill, memory_of, on_device, put, start, used};
use crate::support::processes::{Processes, children, content, settles_empty, signal, with_argument};
use crate::support::until;
use cotensor_core::ErrorKind;
use cotensor_fake_cuda::{FakeCuda, ILLEGAL_ADDRESS};
use cotensor_store::TensorStore;
use rustix::process::Signal;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

/// Calls of the driver, each with its number in the process, in the order in which a producer makes them. It is killed before the call
/// has an effect, so after that of the one before.
const OF_PRODUCERS: [(&str, u32); 12] = [
    ("cuMemCreate", 1),
    ("cuMemAddressReserve", 1),
    ("cuMemMap", 1),
    ("cuMemSetAccess", 1),
    ("cuMemsetD8Async", 1),
    ("cuStreamSynchronize", 1),
    ("cuMemcpyHtoDAsync_v2", 1),
    ("cuStreamSynchronize", 2),
    ("cuMemSetAccess", 2),
    ("cuMemExportToShareableHandle", 1),
    ("cuMemRelease", 1),
    ("cuMemCreate", 2),
];
/// Those of a reader.
const OF_READERS: [(&str, u32); 6] = [
    ("cuMemImportFromShareableHandle", 1),
    ("cuMemGetAllocationPropertiesFromHandle", 1),
    ("cuMemAddressReserve", 1),
    ("cuMemMap", 1),
    ("cuMemSetAccess", 1),
    ("cuMemRelease", 1),
];

/// Runs a client that is to be killed at a call of the driver. The callers call no driver meanwhile.
fn run_to_its_death(processes: &Processes, fake: &FakeCuda, step: &str, (function, call): (&str, u32)) {
    fake.kill_at(function, call).unwrap();
    let mut child = command(processes, fake, step).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let has_survived = lines.any(|line| line == "reached");
    if has_survived {
        child.kill().unwrap();
    }
    let status = child.wait().unwrap();
    fake.repair().unwrap();
    assert!(!has_survived, "{step}: no call {call} of {function}");
    assert_eq!(status.signal(), Some(9), "{step}: {function}");
}

#[test]
fn producer_may_end_at_each_call_of_the_driver() {
    let fake = FakeCuda::start().unwrap();
    let processes = daemon(64 * MIB);
    let store = connect(&processes.socket, "inspector", &memory_of(&fake.library()));
    for at in OF_PRODUCERS {
        run_to_its_death(&processes, &fake, "produces", at);
        if at == ("cuMemCreate", 2) {
            assert_eq!(get(&store, "kept").copy_to_host().unwrap(), content(1, 3 * MIB), "it was published before");
            store.remove("kept").unwrap();
        }
        until("nothing is left", || used(&store) == 0 && fake.used_bytes(0).unwrap() == 0);
    }
    // A slab is mapped twice, and exported before its first tensor is written.
    let of_slabs = OF_PRODUCERS.into_iter().filter(|(function, call)| *call == 1 || *function == "cuMemSetAccess");
    for at in of_slabs.chain([("cuMemMap", 2), ("cuMemAddressReserve", 2)]) {
        run_to_its_death(&processes, &fake, "produces in a slab", at);
        until("nothing is left", || used(&store) == 0 && fake.used_bytes(0).unwrap() == 0);
    }
    drop(store);
    settles_empty(&processes);
}

#[test]
fn reader_may_end_at_each_call_of_the_driver() {
    let fake = FakeCuda::start().unwrap();
    let processes = daemon(64 * MIB);
    let store = connect(&processes.socket, "producer", &memory_of(&fake.library()));
    for at in OF_READERS {
        drop(put(&store, "kept", &content(1, 3 * MIB), KEPT));
        run_to_its_death(&processes, &fake, "reads", at);
        assert_eq!(get(&store, "kept").copy_to_host().unwrap(), content(1, 3 * MIB), "{at:?}");
        store.remove("kept").unwrap();
        until("the lease of the dead reader ends", || used(&store) == 0 && fake.used_bytes(0).unwrap() == 0);
    }
}

#[test]
fn stopped_reader_is_named_by_the_error_of_a_full_device() {
    let fake = FakeCuda::start().unwrap();
    let processes = daemon(6 * MIB);
    let store = connect(&processes.socket, "producer", &memory_of(&fake.library()));
    drop(put(&store, "kept", &content(1, 3 * MIB), KEPT));
    let reader = start(&processes, &fake, "reads");
    signal(reader.id(), Signal::STOP);
    store.remove("kept").unwrap();
    let reserve = || store.reserve(on_device("next", 3 * MIB, KEPT), &store.holder(""));
    let error = reserve().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OverBudget);
    assert!(error.to_string().contains(&format!("child[{}] holds 3.00 MiB", reader.id())), "{error}");
    kill(reader);
    until("the memory of the dead reader is free", || reserve().is_ok());
    until("nothing is left", || used(&store) == 0 && fake.used_bytes(0).unwrap() == 0);
}

#[test]
fn memory_of_a_lost_context_returns_with_the_process() {
    let fake = FakeCuda::start().unwrap();
    let processes = daemon(64 * MIB);
    let store = connect(&processes.socket, "inspector", &memory_of(&fake.library()));
    let producer = start(&processes, &fake, "produces");
    let reader = start(&processes, &fake, "reads");
    for child in [&producer, &reader] {
        fake.lose_contexts(child.id(), ILLEGAL_ADDRESS).unwrap();
    }
    assert_eq!(get(&store, "kept").copy_to_host().unwrap(), content(1, 3 * MIB), "other processes are unharmed");
    store.remove("kept").unwrap();
    assert_eq!((used(&store), fake.used_bytes(0).unwrap()), (12 << 20, 12 << 20), "leases and a reservation");
    kill(producer);
    until("only the lease of the reader is left", || used(&store) == 4 << 20 && fake.used_bytes(0).unwrap() == 4 << 20);
    kill(reader);
    until("nothing is left", || used(&store) == 0 && fake.used_bytes(0).unwrap() == 0);
    drop(store);
    settles_empty(&processes);
}

#[test]
fn tensors_outlive_the_supervisor() {
    let fake = FakeCuda::start().unwrap();
    let mut processes = daemon(64 * MIB);
    let store = connect(&processes.socket, "reader", &memory_of(&fake.library()));
    kill(start(&processes, &fake, "produces"));
    until("only the kept tensor is left", || used(&store) == 4 << 20);
    let replacement = processes.kill_foreground();
    // Its descriptors are those that the next server gets.
    let former = with_argument(&processes.socket).into_iter().find(|process| *process != replacement).unwrap();
    signal(former, Signal::KILL);
    until("the supervisor has started a server", || {
        children(replacement).first().is_some_and(|server| *server != former)
    });
    assert_eq!(get(&store, "kept").copy_to_host().unwrap(), content(1, 3 * MIB));
    store.remove("kept").unwrap();
    until("nothing is left", || used(&store) == 0 && fake.used_bytes(0).unwrap() == 0);
}
