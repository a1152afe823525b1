//! Small tensors in the memory of CUDA devices share slabs of their producer: on a fake driver.

use crate::cuda::{DEVICE, KEPT, MIB, connect, daemon, get, kill, memory_of, on_device, put, start, used, with_device};
use crate::support::processes::{content, settles_empty};
use crate::support::{Running, until};
use cotensor_core::{ErrorKind, MemoryKind};
use cotensor_fake_cuda::FakeCuda;
use cotensor_store::{CopyReason, Lease, Retention, TensorStore};

const UNIT: u64 = 2 << 20;

#[test]
fn small_tensors_share_units_of_the_device() {
    let fake = FakeCuda::start().unwrap();
    let running = with_device(64 * MIB);
    let memory = memory_of(&fake.library());
    let (producer, reader) = (connect(&running.socket, "one", &memory), connect(&running.socket, "two", &memory));
    let bytes = |n: usize| content(n as u64, 10_000);
    let name = |n: usize| format!("t{n}");
    let fill = |range: std::ops::Range<usize>| -> Vec<Lease> {
        range.map(|n| put(&producer, &name(n), &bytes(n), Retention::WhileLeased)).collect()
    };
    let mut held = fill(0..200);
    assert_eq!((used(&producer), fake.used_bytes(0).unwrap()), (UNIT, UNIT));
    held.extend(fill(200..500));
    // Each slab is as long as all before it: 2, 2 and 4 MiB.
    assert_eq!((used(&producer), fake.used_bytes(0).unwrap()), (4 * UNIT, 4 * UNIT));
    let read: Vec<Lease> = (0..500).map(|n| get(&reader, &name(n))).collect();
    assert!(read.iter().all(|lease| lease.segment().kind() == MemoryKind::Slab));
    assert_eq!(fake.used_bytes(0).unwrap(), 4 * UNIT, "readers have the same memory");
    drop(held);
    assert!(read.iter().enumerate().all(|(n, lease)| lease.copy_to_host().unwrap() == bytes(n)));
    drop(read);
    until("idle slabs are given back", || used(&producer) == 0 && fake.used_bytes(0).unwrap() == 0);
    // The client goes on.
    assert!(put(&producer, "again", &bytes(7), KEPT).copy_to_host().unwrap() == bytes(7));
}

#[test]
fn leased_range_is_not_used_again() {
    let fake = FakeCuda::start().unwrap();
    let running = with_device(64 * MIB);
    let memory = memory_of(&fake.library());
    let (producer, reader) = (connect(&running.socket, "one", &memory), connect(&running.socket, "two", &memory));
    let bytes = |n: u64| content(n, 200_000);
    drop(put(&producer, "kept", &bytes(1), KEPT));
    let read = get(&reader, "kept");
    producer.remove("kept").unwrap();
    for n in 2..40 {
        let lease = put(&producer, "other", &bytes(n), Retention::WhileLeased);
        assert!(lease.copy_to_host().unwrap() == bytes(n) && read.copy_to_host().unwrap() == bytes(1), "{n}");
    }
    assert_eq!(fake.used_bytes(0).unwrap(), UNIT, "ranges without leases are used again");
}

#[test]
fn budget_has_room_for_a_slab_before_the_device_is_asked() {
    let fake = FakeCuda::start().unwrap();
    fake.set_memory_bytes(4 << 20).unwrap();
    fake.set_frees_late(true).unwrap();
    let running = with_device(4 * MIB);
    let memory = memory_of(&fake.library());
    let (large, small) = (connect(&running.socket, "large", &memory), connect(&running.socket, "small", &memory));
    for n in 0..2 {
        // It takes the whole device, and is evicted for the slab, once the daemon knows that it has no lease.
        drop(put(&large, "large", &content(n, 3 * MIB), KEPT));
        let reserve = || small.reserve(on_device("small", 100, KEPT), &small.holder(""));
        until("there is room for a slab", || reserve().is_ok());
        let lease = put(&small, "small", &content(n, 100), Retention::WhileLeased);
        assert!(lease.copy_to_host().unwrap() == content(n, 100));
        assert_eq!(large.get("large", &large.holder("")).unwrap_err().kind(), ErrorKind::NotFound);
        drop(lease);
        until("the slab is given back", || used(&small) == 0);
    }
    // The client that has an empty slab gives it back when it needs the room itself.
    drop(put(&small, "small", &content(9, 100), Retention::WhileLeased));
    until("the range is free", || small.reserve(on_device("large", 3 * MIB, KEPT), &small.holder("")).is_ok());
}

#[test]
fn budget_of_a_client_counts_a_slab_once() {
    let fake = FakeCuda::start().unwrap();
    let running = Running::start(|config| {
        config.max_device_bytes = [(DEVICE, 64 << 20)].into();
        config.max_client_bytes = 5 << 20;
    });
    let memory = memory_of(&fake.library());
    let (producer, reader) = (connect(&running.socket, "one", &memory), connect(&running.socket, "two", &memory));
    let names: Vec<String> = (0..10).map(|n| format!("t{n}")).collect();
    let held: Vec<Lease> = names.iter().map(|name| put(&producer, name, &[1; 1000], KEPT)).collect();
    let error = producer.reserve(on_device("more", 3 * MIB, KEPT), &producer.holder("")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OverBudget);
    assert!(error.to_string().contains("2.00 MiB, 4.00 MiB more"), "{error}");
    // A reader's leases take the bytes of the tensors.
    let read: Vec<Lease> = names.iter().map(|name| get(&reader, name)).collect();
    assert!(reader.reserve(on_device("more", 3 * MIB, KEPT), &reader.holder("")).is_ok());
    drop((held, read));
}

#[test]
fn tensors_have_memory_of_their_own_where_slabs_are_refused() {
    let fake = FakeCuda::start().unwrap();
    let running = Running::start(|config| {
        config.max_device_bytes = [(DEVICE, 64 << 20)].into();
        config.small_bytes_max = 0;
    });
    let store = connect(&running.socket, "user", &memory_of(&fake.library()));
    let held = ["a", "b"].map(|name| put(&store, name, &[1], KEPT));
    assert!(held.iter().all(|lease| lease.segment().kind() == MemoryKind::Device));
    assert_eq!((used(&store), fake.used_bytes(0).unwrap()), (2 * UNIT, 2 * UNIT));
}

#[test]
fn addresses_before_publication_are_of_memory_of_its_own() {
    let fake = FakeCuda::start().unwrap();
    let running = with_device(64 * MIB);
    let store = connect(&running.socket, "user", &memory_of(&fake.library()));
    let small = || on_device("x", 100, KEPT);
    let error = store.reserve(small(), &store.holder("")).unwrap().device_address().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "a slab stays writable: {error}");
    let reservation = store.reserve_aliased(small(), &store.holder("")).unwrap();
    let address = reservation.device_address().unwrap();
    let lease = reservation.publish().unwrap();
    assert_eq!((lease.segment().kind(), lease.segment().device_address().unwrap()), (MemoryKind::Device, address));
}

#[test]
fn tensors_in_a_slab_outlive_producer_consumer_and_server() {
    let fake = FakeCuda::start().unwrap();
    let processes = daemon(64 * MIB);
    let memory = memory_of(&fake.library());
    let store = connect(&processes.socket, "reader", &memory);
    let device = || fake.used_bytes(0).unwrap();
    for step in ["reserves in a slab", "releases all in a slab"] {
        let child = start(&processes, &fake, step);
        if step == "reserves in a slab" {
            assert_eq!((used(&store), device()), (UNIT, UNIT));
        }
        kill(child);
        until("the slab of the dead client ends", || used(&store) == 0 && device() == 0);
    }
    let producer = start(&processes, &fake, "produces in a slab");
    let held = get(&store, "held");
    assert_eq!((used(&store), device()), (UNIT, UNIT));
    kill(producer);
    assert!(held.copy_to_host().unwrap() == content(2, 2000));
    let consumer = start(&processes, &fake, "reads");
    processes.kill_server();
    assert!(get(&store, "kept").copy_to_host().unwrap() == content(1, 1000), "the next server has the slab");
    assert!(held.copy_to_host().unwrap() == content(2, 2000));
    store.remove("kept").unwrap();
    drop(held);
    assert_eq!((used(&store), device()), (UNIT, UNIT), "a consumer has a lease");
    kill(consumer);
    until("the slab ends with its last tensor", || used(&store) == 0 && device() == 0);
    drop(store);
    settles_empty(&processes);
}

#[test]
fn producer_goes_on_in_another_slab_after_a_takeover() {
    let fake = FakeCuda::start().unwrap();
    let processes = daemon(64 * MIB);
    let memory = memory_of(&fake.library());
    let (producer, reader) = (connect(&processes.socket, "one", &memory), connect(&processes.socket, "two", &memory));
    let held = put(&producer, "held", &content(1, 1000), Retention::WhileLeased);
    let freed = put(&producer, "freed", &content(2, 1000), Retention::WhileLeased);
    let read = get(&reader, "freed");
    let mut reserved = producer.reserve(on_device("late", 1000, KEPT), &producer.holder("")).unwrap();
    processes.kill_server();
    drop(freed);
    reserved.write(&content(3, 1000), CopyReason::DeviceTransfer).unwrap();
    let late = reserved.publish().unwrap();
    for n in 4..20 {
        let next = put(&producer, "next", &content(n, 1000), Retention::WhileLeased);
        assert!(get(&reader, "next").copy_to_host().unwrap() == content(n, 1000));
        drop(next);
    }
    // No range that another process reads was written.
    for (lease, number) in [(&read, 2), (&get(&reader, "held"), 1), (&get(&reader, "late"), 3), (&late, 3), (&held, 1)]
    {
        assert!(lease.copy_to_host().unwrap() == content(number, 1000), "{number}");
    }
    // The first slab counts once for its former tensors, and once for the late one.
    let counted = used(&reader);
    assert!((2 * UNIT..=3 * UNIT).contains(&counted) && fake.used_bytes(0).unwrap() <= counted, "{counted}");
    reader.remove("late").unwrap();
    drop((held, read, late));
    until("all slabs end", || used(&reader) == 0 && fake.used_bytes(0).unwrap() == 0);
    drop((producer, reader));
    settles_empty(&processes);
}

#[test]
fn lost_connection_ends_no_tensor_in_a_slab() {
    let fake = FakeCuda::start().unwrap();
    let running = with_device(64 * MIB);
    let memory = memory_of(&fake.library());
    let (producer, reader) = (connect(&running.socket, "one", &memory), connect(&running.socket, "two", &memory));
    let held = put(&producer, "held", &content(1, 1000), Retention::WhileLeased);
    let read = get(&reader, "held");
    running.shut_down("one");
    until("the producer is connected again", || {
        let next = put(&producer, "next", &content(2, 1000), Retention::WhileLeased);
        next.copy_to_host().unwrap() == content(2, 1000)
    });
    assert!([&held, &read].into_iter().all(|lease| lease.copy_to_host().unwrap() == content(1, 1000)));
    running.shut_down("two");
    drop(held);
    drop(put(&producer, "next", &content(3, 1000), Retention::WhileLeased));
    assert!(read.copy_to_host().unwrap() == content(1, 1000));
    assert!(get(&reader, "held").copy_to_host().unwrap() == content(1, 1000), "the lease goes on");
    drop(read);
    until("nothing is left", || used(&reader) == 0 && fake.used_bytes(0).unwrap() == 0);
}
