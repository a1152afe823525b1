//! The number of requests that an operation takes.

use crate::blocks::{BYTES, LEASED, put};
use crate::support::processes::content;
use crate::support::{Running, spec, until};
use cotensor_client::ClientStore;
use cotensor_core::Device;
use cotensor_store::{CopyReason, MemoryControl, Reservation, StoreReports, TensorStore};
use std::collections::BTreeMap;

/// The calls so far, after all notifications of the client.
fn calls(running: &Running, client: &ClientStore) -> BTreeMap<&'static str, u64> {
    client.stats();
    running.calls()
}

/// The calls since `before`, but for those of the thread that gives memory back.
fn since(running: &Running, before: &BTreeMap<&'static str, u64>) -> BTreeMap<&'static str, u64> {
    let calls = running.calls().into_iter().map(|(method, count)| (method, count - before.get(method).unwrap_or(&0)));
    calls.filter(|(method, count)| *count > 0 && *method != "ping").collect()
}

#[test]
fn put_of_every_size_in_memory_that_is_there_is_one_request() {
    let running = Running::start(|_| {});
    let producer = running.connect("producer");
    assert_eq!(producer.prefault_to_fill(Device::Cpu, BYTES, 2).unwrap(), 2);
    // Opens the slab of small tensors.
    let _small = put(&producer, "small", &content(0, 100), LEASED).unwrap();
    // Nothing is released meanwhile.
    let mut held = Vec::new();
    for (name, bytes) in [("a", BYTES), ("b", BYTES), ("c", 100), ("d", 1)] {
        let before = calls(&running, &producer);
        let lease = put(&producer, name, &content(1, bytes), LEASED).unwrap();
        assert_eq!(since(&running, &before), BTreeMap::from([("tensor.publish_slab", 1)]), "{name}");
        let before = calls(&running, &producer);
        drop(producer.get(name, &producer.holder("")).unwrap());
        assert_eq!(since(&running, &before), BTreeMap::new(), "a name that is leased here: {name}");
        held.push(lease);
    }
}

#[test]
fn many_tensors_are_one_request_each_and_no_more() {
    const COUNT: usize = 400;
    let running = Running::start(|_| {});
    let (producer, reader) = (running.connect("producer"), running.connect("reader"));
    let names: Vec<String> = (0..COUNT).map(|index| format!("layer.{index}.weight")).collect();
    let filled = |name: &String| {
        let mut reservation = producer.reserve_to_fill(spec(name, 1000), &producer.holder("")).unwrap();
        reservation.write(&content(7, 1000), CopyReason::Put).unwrap();
        reservation
    };
    let reservations: Vec<Reservation> = names.iter().map(filled).collect();
    let before = calls(&running, &producer);
    let held: Vec<_> = Reservation::publish_each(reservations).into_iter().map(Result::unwrap).collect();
    assert_eq!(since(&running, &before), BTreeMap::from([("tensor.publish_slab", COUNT as u64)]));
    let before = calls(&running, &reader);
    let found: Vec<_> = reader.get_each(&names, &reader.holder("")).into_iter().map(Result::unwrap).collect();
    assert_eq!(since(&running, &before), BTreeMap::from([("tensor.get", COUNT as u64)]));
    assert!(found.iter().all(|lease| lease.bytes().unwrap() == content(7, 1000)));
    let before = calls(&running, &reader);
    assert!(reader.get_each(&names, &reader.holder("")).iter().all(Result::is_ok));
    assert_eq!(since(&running, &before), BTreeMap::new(), "all are leased here");
    drop((held, found));
    until("all are released", || reader.stats().total_tensors == 0);
}

/// A reader that takes hundreds of tensors with memory of their own gets a descriptor with each answer.
#[test]
fn many_tensors_with_descriptors_are_one_request_each_and_no_more() {
    const COUNT: usize = 400;
    let running = Running::start(|_| {});
    let (producer, reader) = (running.connect("producer"), running.connect("reader"));
    let names: Vec<String> = (0..COUNT).map(|index| index.to_string()).collect();
    let bytes = content(3, 257 << 10);
    let sealed = |name: &String| {
        let mut reservation = producer.reserve(spec(name, bytes.len()), &producer.holder("")).unwrap();
        reservation.write(&bytes, CopyReason::Put).unwrap();
        reservation.publish().unwrap()
    };
    let _held: Vec<_> = names.iter().map(sealed).collect();
    let before = calls(&running, &reader);
    let found = reader.get_each(&names, &reader.holder(""));
    // Each answer brings the descriptor.
    assert_eq!(since(&running, &before), BTreeMap::from([("tensor.get", COUNT as u64)]));
    assert!(found.iter().all(|lease| lease.as_ref().unwrap().bytes().unwrap() == bytes));
}
