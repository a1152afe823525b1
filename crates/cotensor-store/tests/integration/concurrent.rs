//! Many threads on one store: results are computed once, and no tensor is freed under a lease.

use cotensor_core::testing::FakeDevice;
use cotensor_core::{ContentHash, DType, Device, Error, ErrorKind, Memory, Result};
use cotensor_store::{
    BlobSource, BlobSpec, BlobStore, Claim, ComputationStore, CopyReason, DeviceStats, Key, LocalStore, MemoryControl,
    Retention, StoreReports, TensorSpec, TensorStore,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

fn spec(name: &str, bytes: usize) -> TensorSpec {
    TensorSpec {
        retention: Retention::Cached { recompute: Duration::from_millis(1) },
        ..TensorSpec::new(name, DType::U8, &[bytes])
    }
}

fn on_threads(count: usize, work: impl Fn(usize) + Sync) {
    let start = Barrier::new(count);
    std::thread::scope(|scope| {
        for thread in 0..count {
            let (start, work) = (&start, &work);
            scope.spawn(move || {
                start.wait();
                work(thread);
            });
        }
    });
}

#[test]
fn one_thread_computes_and_all_lease_the_result() {
    let store = LocalStore::builder().build();
    let computed = AtomicUsize::new(0);
    for round in 0..50u8 {
        let key = Key(ContentHash::of(&[round]));
        on_threads(8, |thread| {
            let holder = store.holder(&format!("model {thread}"));
            let leases = match store.claim(&key, &holder).unwrap() {
                Claim::Ready(leases) => leases,
                Claim::Compute(ticket) => {
                    computed.fetch_add(1, Ordering::SeqCst);
                    let mut result = store.reserve(spec(&format!("result {round}"), 64), &holder).unwrap();
                    result.bytes_mut().unwrap().fill(round);
                    ticket.publish(vec![result]).unwrap()
                }
            };
            assert_eq!(leases[0].bytes().unwrap(), [round; 64]);
        });
        assert_eq!(computed.load(Ordering::SeqCst), usize::from(round) + 1);
    }
}

#[test]
fn abandoned_or_panicked_computation_passes_to_a_waiter() {
    let store = LocalStore::builder().build();
    let key = Key(ContentHash::of(b"key"));
    let turns = AtomicUsize::new(0);
    let panicked = AtomicUsize::new(0);
    on_threads(6, |_| {
        let holder = store.holder("m");
        let attempt = || match store.claim(&key, &holder).unwrap() {
            Claim::Ready(leases) => Some(leases),
            Claim::Compute(ticket) => match turns.fetch_add(1, Ordering::SeqCst) {
                0 => panic!("the first computation panics"),
                1 => {
                    drop(ticket);
                    None
                }
                2 => {
                    ticket.abandon();
                    None
                }
                3 => {
                    let mut result = store.reserve(spec("result", 4), &holder).unwrap();
                    result.write(&[7; 4], CopyReason::Put).unwrap();
                    Some(ticket.publish(vec![result]).unwrap())
                }
                _ => unreachable!("computed twice"),
            },
        };
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(attempt)) {
            Ok(Some(leases)) => assert_eq!(leases[0].bytes().unwrap(), [7; 4]),
            Ok(None) => {}
            Err(_) => {
                panicked.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    assert_eq!(panicked.load(Ordering::SeqCst), 1);
    assert_eq!(turns.load(Ordering::SeqCst), 4);
    assert!(store.is_computed(&key));
}

#[test]
fn claim_wait_times_out() {
    let store = LocalStore::builder().claim_wait_max(Duration::from_millis(20)).build();
    let (key, holder) = (Key(ContentHash::of(b"slow")), store.holder("m"));
    let Claim::Compute(ticket) = store.claim(&key, &holder).unwrap() else { panic!("nothing is computed yet") };
    assert_eq!(store.claim(&key, &holder).err().unwrap().kind(), ErrorKind::TimedOut);
    drop(ticket);
    assert!(matches!(store.claim(&key, &holder).unwrap(), Claim::Compute(_)));
}

/// Fills each blob with its number and counts the calls; fails at `fails_at`.
struct Source<'a> {
    numbers: Vec<usize>,
    filled: &'a [AtomicUsize],
    fails_at: Option<usize>,
}

impl BlobSource for Source<'_> {
    fn fill(&mut self, index: usize, target: &mut [u8]) -> Result<()> {
        let number = self.numbers[index];
        if self.fails_at == Some(number) {
            return Err(Error::corrupt("damaged"));
        }
        self.filled[number].fetch_add(1, Ordering::SeqCst);
        target.fill(number as u8);
        Ok(())
    }
}

fn content(number: usize) -> BlobSpec {
    let bytes = vec![number as u8; number * 10];
    BlobSpec {
        device: Device::Cpu,
        hash: ContentHash::of(&bytes),
        dtype: DType::U8,
        shape: vec![number * 10],
        producer: "m".to_owned(),
        label: String::new(),
        metadata: None,
    }
}

#[test]
fn blobs_are_filled_once_for_concurrent_requests() {
    const CONTENTS: usize = 40;
    let store = LocalStore::builder().build();
    let filled: Vec<AtomicUsize> = (0..CONTENTS).map(|_| AtomicUsize::new(0)).collect();
    on_threads(8, |thread| {
        let holder = store.holder(&format!("model {thread}"));
        // Each thread requests the blobs in another order, and some of them twice.
        let numbers: Vec<usize> = (0..CONTENTS + 5).map(|i| (i * 7 + thread * 11) % CONTENTS).collect();
        let specs: Vec<BlobSpec> = numbers.iter().map(|&number| content(number)).collect();
        let mut source = Source { numbers: numbers.clone(), filled: &filled, fails_at: None };
        let leases = store.blobs(&specs, &mut source, &holder).unwrap();
        for (lease, &number) in leases.iter().zip(&numbers) {
            assert_eq!(lease.bytes().unwrap(), vec![number as u8; number * 10]);
            assert_eq!(lease.identity(), content(number).identity());
        }
    });
    assert!(filled.iter().all(|times| times.load(Ordering::SeqCst) == 1));
    assert_eq!(store.stats().total_tensors, CONTENTS);
}

#[test]
fn failing_source_publishes_nothing_and_others_continue() {
    let store = LocalStore::builder().build();
    let filled: Vec<AtomicUsize> = (0..10).map(|_| AtomicUsize::new(0)).collect();
    let specs: Vec<BlobSpec> = (0..10).map(content).collect();
    let mut failing = Source { numbers: (0..10).collect(), filled: &filled, fails_at: Some(5) };
    let error = store.blobs(&specs, &mut failing, &store.holder("m")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let before: usize = filled.iter().map(|times| times.load(Ordering::SeqCst)).sum();
    assert!(before > 0, "some were filled before it failed");
    assert_eq!((store.stats().total_tensors, store.stats().memory_usage_bytes), (0, 0), "and are not kept");

    let successes = AtomicUsize::new(0);
    on_threads(4, |thread| {
        let fails_at = (thread != 0).then_some(5);
        let mut source = Source { numbers: (0..10).collect(), filled: &filled, fails_at };
        match store.blobs(&specs, &mut source, &store.holder("m")) {
            Ok(leases) => {
                assert_eq!(leases[5].bytes().unwrap(), [5; 50]);
                successes.fetch_add(1, Ordering::SeqCst);
            }
            // A thread that filled before thread 0. Thread 0 always succeeds.
            Err(error) => assert!(thread != 0 && error.kind() == ErrorKind::Corrupt, "{error}"),
        }
    });
    assert!(successes.load(Ordering::SeqCst) > 0);
    assert_eq!(store.stats().total_tensors, 10);
    store.optimize();
    assert_eq!(store.stats().memory_usage_bytes, 0);
}

#[test]
fn leased_versions_survive_eviction_and_publication() {
    let device = FakeDevice::default();
    let store = LocalStore::builder().memory(Arc::new(device.clone()));
    let store = store.max_device_bytes(device.device(), 4000).build();
    let (reserved, found) = (AtomicUsize::new(0), AtomicUsize::new(0));
    on_threads(6, |thread| {
        let holder = store.holder(&format!("model {thread}"));
        for i in 0..400usize {
            let name = format!("tensor {}", (i + thread) % 5);
            let value = (i % 251) as u8;
            match store.reserve(spec(&name, 500).on(device.device()), &holder) {
                Ok(mut reservation) => {
                    reserved.fetch_add(1, Ordering::SeqCst);
                    reservation.write(&[value; 500], CopyReason::Put).unwrap();
                    let lease = reservation.publish().unwrap();
                    let mut read = [0; 500];
                    lease.segment().read_at(0, &mut read).unwrap();
                    assert_eq!(read, [value; 500], "a leased version does not change");
                    assert!(lease.bytes().is_none(), "a device has no host bytes");
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::OverBudget, "{error}"),
            }
            if let Ok(lease) = store.get(&name, &holder) {
                found.fetch_add(1, Ordering::SeqCst);
                let mut read = [0; 500];
                lease.segment().read_at(0, &mut read).unwrap();
                assert!(read.iter().all(|byte| *byte == read[0]));
            }
            assert!(device.live_bytes() <= 4000, "more memory than the budget");
            if i % 50 == 0 {
                store.optimize();
                store.diagnostics();
            }
        }
    });
    assert!(reserved.load(Ordering::SeqCst) > 0 && found.load(Ordering::SeqCst) > 0);
    store.optimize();
    let used = |stats: &DeviceStats| stats.memory_usage_bytes;
    assert_eq!((store.stats().devices.iter().map(used).sum::<u64>(), device.live_bytes()), (0, 0));
}

#[test]
fn reservation_succeeds_while_all_tensors_can_be_evicted() {
    let store = LocalStore::builder().max_memory_bytes(100).build();
    let done = std::sync::atomic::AtomicBool::new(false);
    on_threads(3, |thread| {
        let holder = store.holder(&format!("model {thread}"));
        if thread > 0 {
            while !done.load(Ordering::SeqCst) {
                drop(store.get("a", &holder));
            }
            return;
        }
        let mut wrong = Vec::new();
        for _ in 0..20_000 {
            match store.reserve(spec("a", 100), &holder) {
                Ok(reservation) => drop(reservation.publish().unwrap()),
                // Correct while a reader leases the tensor.
                Err(error) if !error.to_string().contains("empty slabs take 100") => {}
                Err(error) => wrong.push(error.to_string()),
            }
        }
        // The readers must end before this thread can panic.
        done.store(true, Ordering::SeqCst);
        assert!(wrong.is_empty(), "{} times: {}", wrong.len(), wrong[0]);
    });
}
