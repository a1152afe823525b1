//! Clients of one daemon share tensors, computations, blobs and the budget.

use crate::support::{Running, put, spec};
use cotensor_client::protocol as p;
use cotensor_core::{ContentHash, DType, ErrorKind, Result};
use cotensor_store::{
    BlobSource, BlobSpec, BlobStore, Claim, ComputationStore, CopyReason, Key, Lease, MemoryControl, StoreReports,
    TensorStore,
};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

#[test]
fn small_and_large_tensors_are_shared_between_clients() {
    let running = Running::start(|_| {});
    let (one, other) = (running.connect("one"), running.connect("other"));
    for bytes in [0, 1, 4096, 256 << 10, (256 << 10) + 1, 5 << 20] {
        let content: Vec<u8> = (0..bytes).map(|index| (index % 251) as u8).collect();
        let made = put(&*one, "x", &content);
        let found = other.get("x", &other.holder("reader")).unwrap();
        assert_eq!((found.id(), found.shape(), found.dtype()), (made.id(), &[bytes][..], DType::U8));
        assert!(found.bytes().unwrap() == content && made.bytes().unwrap() == content, "{bytes}");
        assert_eq!(found.identity(), made.identity());
        let again = other.get("x", &other.holder("second reader")).unwrap();
        assert_eq!(again.bytes().unwrap().as_ptr(), found.bytes().unwrap().as_ptr(), "one mapping");
        drop(made);
        drop(found);
        assert!(again.bytes().unwrap() == content, "the reader keeps the tensor after the producer released it");
        drop(again);
    }
    drop(one);
    running.settles_at(0);
    assert_eq!(other.get("x", &other.holder("")).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn readers_keep_their_version_of_a_name() {
    let running = Running::start(|_| {});
    let (one, other) = (running.connect("one"), running.connect("other"));
    let first = put(&*one, "x", b"first");
    let kept = other.get("x", &other.holder("")).unwrap();
    let second = put(&*one, "x", b"second");
    assert_eq!((second.id().name_id, second.id().version), (first.id().name_id, first.id().version + 1));
    assert_eq!(kept.bytes().unwrap(), b"first");
    assert_eq!(other.get("x", &other.holder("")).unwrap().bytes().unwrap(), b"second");
    assert!(other.has(first.id()));
    drop((first, kept));
    let exact = other.lease(second.id(), &other.holder("")).unwrap();
    assert_eq!(exact.bytes().unwrap(), b"second");
    other.remove("x").unwrap();
    assert_eq!(one.get("x", &one.holder("")).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(exact.bytes().unwrap(), b"second");
}

#[test]
fn leased_slab_range_is_not_reused() {
    let running = Running::start(|_| {});
    let (one, other) = (running.connect("one"), running.connect("other"));
    let made = put(&*one, "kept", &[7; 4096]);
    let kept = other.get("kept", &other.holder("")).unwrap();
    drop(made);
    // More bytes than one slab has: free ranges are reused, the leased one is not.
    for round in 0..3000u32 {
        let lease = put(&*one, "transient", &[round as u8; 4096]);
        assert_eq!(lease.bytes().unwrap()[0], round as u8);
    }
    assert!(kept.bytes().unwrap().iter().all(|&byte| byte == 7));
    // The client published 12 MB; its open slabs are much smaller.
    let used = running.daemon.store().stats().memory_usage_bytes;
    assert!(used <= 3 * (4 << 20), "{used} bytes of slabs");
}

#[test]
fn one_session_computes_and_others_wait() {
    let running = Running::start(|_| {});
    let key = Key(ContentHash::of(b"stage"));
    let computed = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for index in 0..6 {
            let (running, computed) = (&running, &computed);
            scope.spawn(move || {
                let store = running.connect(&format!("client {index}"));
                let holder = store.holder("stage");
                let leases = match store.claim(&key, &holder).unwrap() {
                    Claim::Ready(leases) => leases,
                    Claim::Compute(ticket) => {
                        computed.fetch_add(1, Ordering::SeqCst);
                        let result = |name: &str, bytes: usize| {
                            let mut spec = spec(name, bytes);
                            spec.retention = cotensor_store::Retention::Cached { recompute: Default::default() };
                            let mut result = store.reserve(spec, &holder).unwrap();
                            result.write(&vec![index as u8; bytes], CopyReason::EngineOutput).unwrap();
                            result
                        };
                        ticket.publish(vec![result("small", 100), result("large", 1 << 20)]).unwrap()
                    }
                };
                assert_eq!(leases.iter().map(Lease::name).collect::<Vec<_>>(), ["small", "large"]);
                assert_eq!(leases[0].bytes().unwrap()[0], leases[1].bytes().unwrap()[9]);
                assert!(store.is_computed(&key));
            });
        }
    });
    assert_eq!(computed.load(Ordering::SeqCst), 1);
}

#[test]
fn claim_passes_to_a_waiting_session_on_disconnect() {
    let running = Running::start(|_| {});
    let key = Key(ContentHash::of(b"stage"));
    let (one, other) = (running.connect("one"), running.connect("other"));
    let Claim::Compute(ticket) = one.claim(&key, &one.holder("")).unwrap() else { panic!("the key has no result") };
    // While the first session lives, the claim of another waits.
    let params = p::ClaimParams { key: key.0.to_string(), holder: String::new(), timeout_ms: Some(10) };
    assert_eq!(other.request::<p::Claim>(&params).unwrap_err().kind(), ErrorKind::TimedOut);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| matches!(other.claim(&key, &other.holder("")).unwrap(), Claim::Compute(_)));
        // The connection ends as if the process were killed: the ticket is not abandoned by a call.
        one.disconnect();
        assert!(waiting.join().unwrap());
    });
    drop(ticket);
}

struct Numbers(AtomicUsize);

impl BlobSource for &Numbers {
    fn fill(&mut self, _: usize, target: &mut [u8]) -> Result<()> {
        self.0.fetch_add(1, Ordering::SeqCst);
        let len = target.len();
        target.fill(len as u8);
        Ok(())
    }
}

fn blob(len: usize) -> BlobSpec {
    let hash = ContentHash::of(&vec![len as u8; len]);
    BlobSpec {
        device: cotensor_core::Device::Cpu,
        hash,
        dtype: DType::U8,
        shape: vec![len],
        producer: "model".to_owned(),
        label: String::new(),
        metadata: None,
    }
}

#[test]
fn each_blob_is_uploaded_once() {
    let running = Running::start(|_| {});
    let (filled, have_all) = (Numbers(AtomicUsize::new(0)), Barrier::new(4));
    std::thread::scope(|scope| {
        for index in 0..4usize {
            let (running, filled, have_all) = (&running, &filled, &have_all);
            scope.spawn(move || {
                let store = running.connect(&format!("client {index}"));
                // Overlapping lists in different orders, with one blob twice.
                let lens: Vec<usize> =
                    (0..20).map(|index_in_list| 10 + (index_in_list * (index + 3)) % 20).chain([10]).collect();
                let specs: Vec<BlobSpec> = lens.iter().map(|&len| blob(len)).collect();
                let leases = store.blobs(&specs, &mut &*filled, &store.holder("model")).unwrap();
                for (len, lease) in lens.iter().zip(&leases) {
                    assert!(lease.bytes().unwrap() == vec![*len as u8; *len] && lease.shape() == [*len]);
                }
                // All leases live until each client has its own.
                have_all.wait();
            });
        }
    });
    assert_eq!(filled.0.load(Ordering::SeqCst), 20, "each blob is uploaded once");
}

#[test]
fn budget_covers_all_clients() {
    // The rest is for metadata.
    let running = Running::start(|config| config.max_memory_bytes = (10 << 20) + (16 << 10));
    let (one, other) = (running.connect("one"), running.connect("other"));
    let held = put(&*one, "held", &vec![1; 7 << 20]);
    let error = other.reserve(spec("more", 4 << 20), &other.holder("")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OverBudget);
    assert!(error.to_string().contains("one") && error.to_string().contains("7.00 MiB"), "{error}");
    // Dropping an unpublished reservation frees its bytes.
    drop(one.reserve(spec("dropped", 3 << 20), &one.holder("")).unwrap());
    drop(held);
    running.settles_at(0);
    put(&*other, "more", &vec![2; 10 << 20]);
    assert_eq!(other.stats().peak_memory_bytes, 10 << 20);
    assert!(other.limit_memory(cotensor_core::Device::Cpu, 1).is_err());
}

#[test]
fn session_resources_are_released_on_disconnect() {
    let running = Running::start(|_| {});
    let survivor = running.connect("survivor");
    let kept = put(&*survivor, "kept", &vec![3; 1 << 20]);
    let ended = running.connect("ended");
    let read = ended.get("kept", &ended.holder("")).unwrap();
    let (small, large) = (put(&*ended, "small", b"abc"), put(&*ended, "large", &vec![9; 3 << 20]));
    let unpublished = ended.reserve(spec("unpublished", 2 << 20), &ended.holder("")).unwrap();
    assert!(running.daemon.store().stats().memory_usage_bytes >= 6 << 20);
    ended.disconnect();
    assert_eq!(read.bytes().unwrap()[5], 3, "mappings stay valid");
    assert_eq!((small.bytes().unwrap(), large.bytes().unwrap()[0]), (&b"abc"[..], 9));
    drop((read, small, large));
    running.settles_at(1 << 20);
    drop(unpublished);
    assert_eq!(kept.bytes().unwrap()[0], 3);
}

#[test]
fn lease_keeps_its_client_store_alive() {
    let running = Running::start(|_| {});
    let (one, two) = (running.connect("one"), running.connect("two"));
    let made = put(&*one, "x", b"content");
    drop(one);
    let read = two.get("x", &two.holder("")).unwrap();
    drop((two, made));
    let three = running.connect("three");
    assert_eq!(three.get("x", &three.holder("")).unwrap().bytes().unwrap(), b"content");
    drop(read);
    running.settles_at(0);
    assert_eq!(three.get("x", &three.holder("")).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn next_version_wakes_a_reader_of_the_one_before() {
    let running = Running::start(|_| {});
    let (producer, reader) = (running.connect("producer"), running.connect("reader"));
    for bytes in [100, 1 << 20] {
        let mut held = put(&*producer, "x", &vec![0; bytes]);
        for version in 1..20u8 {
            let (seen, long) = (reader.get("x", &reader.holder("")).unwrap(), Duration::from_secs(60));
            assert_eq!(seen.bytes().unwrap()[0], version - 1);
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| while reader.wait_while_newest("x", seen.id(), long).unwrap() {});
                held = put(&*producer, "x", &vec![version; bytes]);
                waiting.join().unwrap();
            });
        }
        assert!(!reader.wait_while_newest("x", held.id(), Duration::ZERO).unwrap(), "it is not leased here");
        assert!(!reader.wait_while_newest("y", held.id(), Duration::ZERO).unwrap(), "there is no such name");
    }
}
