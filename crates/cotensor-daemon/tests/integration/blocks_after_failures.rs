//! Blocks after failures: a repeated or refused publication, an ended daemon, a client that closes.

use crate::blocks::{BYTES, KEPT, LEASED, MIB, put};
use crate::support::processes::{Processes, content};
use crate::support::{Running, segments_since, spec, until};
use cotensor_client::protocol as p;
use cotensor_core::{Device, ErrorKind, Memory};
use cotensor_memory::Slab;
use cotensor_store::{Lease, StoreReports, TensorStore};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

/// A client repeats a publication whose answer was lost with the server.
#[test]
fn block_is_free_after_the_last_of_its_tensors() {
    let running = Running::start(|_| {});
    let freed = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&freed);
    let on_notification = move |method: &str, _: &_, _| {
        if method == p::notification::SLAB_FREED {
            count.fetch_add(1, Ordering::SeqCst);
        }
    };
    let raw = cotensor_client::connect(&running.socket, Box::new(on_notification)).unwrap();
    let hello = p::HelloParams { protocol: p::PROTOCOL, client: "raw".to_owned(), ..Default::default() };
    raw.call::<p::Hello>(&hello, Vec::new(), None).unwrap();
    let block = Slab::create(MIB).unwrap();
    let written = block.copy_of(&content(1, MIB)).unwrap().freeze().unwrap();
    let fd = || block.fd().try_clone_to_owned().unwrap();
    let open = p::SlabParams { bytes: MIB as u64, block: true, device: Device::Cpu, reservation: None };
    let slab = raw.call::<p::OpenSlab>(&open, vec![fd()], None).unwrap().0.slab;
    let try_publish = |name: &str, expected| {
        let spec = p::Spec::from(&spec(name, MIB));
        let offset = written.fd_offset() as u64;
        let params = p::PublishSlabParams {
            slab,
            offset,
            spec,
            holder: String::new(),
            ticket: None,
            expected,
            copies: Vec::new(),
            again: false,
        };
        raw.call::<p::PublishSlab>(&params, Vec::new(), None).map(|(published, _)| published.id)
    };
    let publish = |name: &str| try_publish(name, None).unwrap();
    let release = |id| {
        let leases = vec![p::LeaseParams { id, holder: String::new() }];
        raw.call::<p::Release>(&p::ReleaseParams { leases }, Vec::new(), None).unwrap();
        freed.load(Ordering::SeqCst)
    };
    let (first, second) = (publish("first"), publish("second"));
    assert_eq!(running.daemon.store().stats().memory_usage_bytes, MIB as u64, "the memory is counted once");
    assert_eq!(release(first), 0, "the second one lies in it");
    running.settles_at(MIB as u64);
    assert_eq!(release(second), 1);
    running.settles_at(0);
    let _other = put(&running.connect("other"), "taken", &content(2, MIB), LEASED).unwrap();
    let refused = try_publish("taken", Some(p::Expected::Absent)).unwrap_err();
    assert_eq!((refused.kind(), freed.load(Ordering::SeqCst)), (ErrorKind::Conflict, 1), "the error is the report");
    let error = raw.call::<p::OpenSlab>(&open, vec![fd()], None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "a session has it: {error}");
    for bytes in [0, (64 << 20) + 1, 1 << 63] {
        let error = raw.call::<p::OpenSlab>(&p::SlabParams { bytes, ..open }, vec![fd()], None).unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::Invalid, Some("bytes")), "{bytes}: {error}");
    }
}

#[test]
fn tensor_beyond_the_budget_of_its_client_is_not_published() {
    let running = Running::start(|config| config.max_client_bytes = 3 * MIB as u64);
    let (producer, reader) = (running.connect("producer"), running.connect("reader"));
    let held = put(&producer, "held", &content(0, 2 * MIB), KEPT).unwrap();
    assert_eq!(put(&producer, "a", &content(1, 2 * MIB), KEPT).unwrap_err().kind(), ErrorKind::OverBudget);
    assert_eq!(reader.get("a", &reader.holder("")).unwrap_err().kind(), ErrorKind::NotFound);
    drop(held);
    let next = put(&producer, "a", &content(2, 2 * MIB), KEPT).unwrap();
    assert_eq!(next.bytes().unwrap(), content(2, 2 * MIB));
}

#[test]
fn threads_put_more_than_all_blocks_at_once() {
    const THREADS: u64 = 6;
    let running = Running::start(|_| {});
    let (producer, start) = (running.connect("producer"), Barrier::new(THREADS as usize));
    let put = |number: u64| {
        let bytes = vec![number as u8; 60 * MIB];
        start.wait();
        put(&producer, &format!("n{number}"), &bytes, LEASED).map(|lease| (number, lease))
    };
    let leases: Vec<(u64, Lease)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|number| scope.spawn(move || put(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect()
    });
    assert!(leases.iter().all(|(number, lease)| lease.bytes().unwrap().iter().all(|byte| *byte == *number as u8)));
}

#[test]
fn memory_of_tensors_that_ended_with_their_daemon_is_given_back() {
    let before = segments_since(&Default::default());
    let mut processes = Processes::start();
    let producer = processes.connect("producer");
    let held = put(&producer, "held", &content(0, BYTES), LEASED).unwrap();
    for version in 1..4 {
        for n in 0..4 {
            drop(put(&producer, &format!("n{n}"), &content(version, 2 * MIB), KEPT).unwrap());
        }
        processes = processes.start_anew();
        until("the producer uses the new daemon", || {
            producer.stats().total_tensors == 0 && producer.get("n0", &producer.holder("")).is_err()
        });
    }
    let left: Vec<u64> =
        segments_since(&before).into_values().map(|(bytes, _)| bytes).filter(|bytes| *bytes > 0).collect();
    assert_eq!(left, [BYTES.next_multiple_of(rustix::param::page_size()) as u64], "that of the held tensor");
    assert_eq!(held.bytes().unwrap(), content(0, BYTES));
}

#[test]
fn client_that_closes_keeps_the_memory_of_its_leases_only() {
    let running = Running::start(|_| {});
    let before = segments_since(&Default::default());
    let producer = running.connect("producer");
    let held = put(&producer, "held", &content(0, BYTES), LEASED).unwrap();
    drop((0..4).map(|n| put(&producer, &format!("n{n}"), &content(n, 2 * MIB), LEASED).unwrap()).collect::<Vec<_>>());
    producer.disconnect();
    until("one segment is left", || segments_since(&before).len() == 1);
    assert_eq!(held.bytes().unwrap(), content(0, BYTES));
}
