//! Clients of one daemon: what one publishes, the other reads where it lies; and all of it goes with its leases.

use crate::support::{Running, put, spec};
use cotensor_client::protocol as p;
use cotensor_core::{ContentHash, DType, ErrorKind, Result};
use cotensor_store::{
    BlobSource, BlobSpec, BlobStore, Claim, ComputationStore, CopyReason, Key, Lease, MemoryControl, StoreReports,
    TensorStore,
};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn small_and_large_tensors_pass_from_one_client_to_the_other() {
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
        assert!(again.bytes().unwrap() == content, "the producer let go, the reader has it still");
        drop(again);
    }
    drop(one);
    running.settles_at(0);
    assert_eq!(other.get("x", &other.holder("")).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_name_has_versions_and_readers_keep_theirs() {
    let running = Running::start(|_| {});
    let (one, other) = (running.connect("one"), running.connect("other"));
    let first = put(&*one, "x", b"first");
    let kept = other.get("x", &other.holder("")).unwrap();
    let second = put(&*one, "x", b"second");
    assert_eq!((second.id().slot, second.id().version), (first.id().slot, first.id().version + 1));
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
fn a_range_of_a_slab_is_not_used_again_while_somebody_leases_it() {
    let running = Running::start(|_| {});
    let (one, other) = (running.connect("one"), running.connect("other"));
    let made = put(&*one, "kept", &[7; 4096]);
    let kept = other.get("kept", &other.holder("")).unwrap();
    drop(made);
    // More than one slab's worth: ranges that nobody leases are used again, the kept one is not.
    for round in 0..3000u32 {
        let lease = put(&*one, "passing", &[round as u8; 4096]);
        assert_eq!(lease.bytes().unwrap()[0], round as u8);
    }
    assert!(kept.bytes().unwrap().iter().all(|&byte| byte == 7));
    // 12 MB went through; the slabs that are open are far less.
    let used = running.daemon.store().stats().memory_usage_bytes;
    assert!(used <= 3 * (4 << 20), "{used} bytes of slabs");
}

#[test]
fn one_session_computes_and_the_others_wait_for_it() {
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
fn a_claim_passes_on_when_its_session_dies() {
    let running = Running::start(|_| {});
    let key = Key(ContentHash::of(b"stage"));
    let (one, other) = (running.connect("one"), running.connect("other"));
    let Claim::Compute(ticket) = one.claim(&key, &one.holder("")).unwrap() else { panic!("nothing is there") };
    // While the first session lives, the claim of another waits.
    let params = p::ClaimParams { key: key.0.to_string(), holder: String::new(), timeout_ms: Some(10) };
    assert_eq!(other.request::<p::Claim>(&params).unwrap_err().kind(), ErrorKind::TimedOut);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| matches!(other.claim(&key, &other.holder("")).unwrap(), Claim::Compute(_)));
        // The connection ends as if the process were killed: the ticket is not declined.
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

fn content(len: usize) -> BlobSpec {
    let hash = ContentHash::of(&vec![len as u8; len]);
    BlobSpec {
        device: cotensor_core::Device::Cpu,
        hash,
        dtype: DType::U8,
        shape: vec![len],
        producer: "model".to_owned(),
    }
}

#[test]
fn contents_are_provided_once_whoever_asks() {
    let running = Running::start(|_| {});
    let (filled, have_all) = (Numbers(AtomicUsize::new(0)), Barrier::new(4));
    std::thread::scope(|scope| {
        for index in 0..4usize {
            let (running, filled, have_all) = (&running, &filled, &have_all);
            scope.spawn(move || {
                let store = running.connect(&format!("client {index}"));
                // Lists that overlap, each in an order of its own, one content twice.
                let lens: Vec<usize> = (0..20).map(|place| 10 + (place * (index + 3)) % 20).chain([10]).collect();
                let specs: Vec<BlobSpec> = lens.iter().map(|&len| content(len)).collect();
                let leases = store.blobs(&specs, &mut &*filled, &store.holder("model")).unwrap();
                for (len, lease) in lens.iter().zip(&leases) {
                    assert!(lease.bytes().unwrap() == vec![*len as u8; *len] && lease.shape() == [*len]);
                }
                // All leases live until each client has its own.
                have_all.wait();
            });
        }
    });
    assert_eq!(filled.0.load(Ordering::SeqCst), 20, "each content once");
}

#[test]
fn the_budget_is_the_daemons() {
    // And what is known about the tensors.
    let running = Running::start(|config| config.max_memory_bytes = (10 << 20) + (16 << 10));
    let (one, other) = (running.connect("one"), running.connect("other"));
    let held = put(&*one, "held", &vec![1; 7 << 20]);
    let error = other.reserve(spec("more", 4 << 20), &other.holder("")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OverBudget);
    assert!(error.to_string().contains("one") && error.to_string().contains("7.00 MiB"), "{error}");
    // A reservation that is not published gives its room back, too.
    drop(one.reserve(spec("dropped", 3 << 20), &one.holder("")).unwrap());
    drop(held);
    running.settles_at(0);
    put(&*other, "more", &vec![2; 10 << 20]);
    assert_eq!(other.stats().peak_memory_bytes, 10 << 20);
    assert!(other.limit_memory(cotensor_core::Device::Cpu, 1).is_err());
}

#[test]
fn everything_of_a_session_goes_with_it() {
    let running = Running::start(|_| {});
    let survivor = running.connect("survivor");
    let kept = put(&*survivor, "kept", &vec![3; 1 << 20]);
    let doomed = running.connect("doomed");
    let read = doomed.get("kept", &doomed.holder("")).unwrap();
    let (small, large) = (put(&*doomed, "small", b"abc"), put(&*doomed, "large", &vec![9; 3 << 20]));
    let unpublished = doomed.reserve(spec("unpublished", 2 << 20), &doomed.holder("")).unwrap();
    assert!(running.daemon.store().stats().memory_usage_bytes >= 6 << 20);
    doomed.disconnect();
    running.settles_at(1 << 20);
    assert_eq!(read.bytes().unwrap()[5], 3, "what is mapped stays mapped");
    assert_eq!((small.bytes().unwrap(), large.bytes().unwrap()[0]), (&b"abc"[..], 9));
    drop((read, small, large, unpublished));
    assert_eq!(kept.bytes().unwrap()[0], 3);
}

#[test]
fn a_lease_keeps_its_store_and_so_the_tensor_for_others() {
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
