//! The path of every lookup: name to lease and back, on one thread and on four, and a claim that finds its result.
//!
//! Targets: at most 150 ns per lookup, lease and release on one thread; on four threads over different names at
//! least three times that throughput (on a machine with four cores).
#![allow(missing_docs, reason = "criterion's macros make public functions")]
#![allow(clippy::unwrap_used)]

use cotensor_core::{ContentHash, DType, Device, Kind};
use cotensor_store::{Claim, ComputationStore, Holder, Key, LocalStore, Retention, Store, TensorSpec, TensorStore};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

const NAMES_PER_THREAD: usize = 64;
const THREADS: usize = 4;

fn spec(name: String) -> TensorSpec {
    TensorSpec {
        device: Device::Cpu,
        name,
        dtype: DType::F32,
        shape: vec![1, 768],
        kind: Kind::TextEmbedding,
        space: None,
        producer: "bench".to_owned(),
        retention: Retention::Cached { recompute: Duration::from_millis(10) },
        provenance: None,
        keep_for: None,
        metadata: None,
        members: None,
    }
}

fn store() -> Arc<LocalStore> {
    let store = LocalStore::builder().build();
    let holder = store.holder("producer");
    for thread in 0..THREADS {
        names(thread).into_iter().for_each(|name| drop(store.reserve(spec(name), &holder).unwrap().publish().unwrap()));
    }
    store
}

fn names(thread: usize) -> Vec<String> {
    (0..NAMES_PER_THREAD).map(|i| format!("model-{thread}/stage-{i}/last_hidden_state")).collect()
}

fn look_up(store: &dyn Store, names: &[String], holder: &Holder, times: u64) {
    for name in names.iter().cycle().take(times as usize) {
        black_box(store.get(name, holder).unwrap());
    }
}

/// The wall time of `times` lookups on each of `threads` threads.
fn on_threads(store: &Arc<LocalStore>, threads: usize, times: u64) -> Duration {
    let start = Barrier::new(threads + 1);
    let mut began = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (store, start) = (Arc::clone(store), &start);
            scope.spawn(move || {
                let (names, holder) = (names(thread), store.holder("reader"));
                start.wait();
                look_up(&*store, &names, &holder, times);
            });
        }
        start.wait();
        began = Instant::now();
    });
    began.elapsed()
}

fn benches(criterion: &mut Criterion) {
    let store = store();
    let mut group = criterion.benchmark_group("lookup, lease, release");
    for threads in [1, THREADS] {
        group.throughput(Throughput::Elements(threads as u64));
        group.bench_function(format!("{threads} thread(s), different names"), |bencher| {
            bencher.iter_custom(|times| on_threads(&store, threads, times));
        });
    }
    group.finish();

    let holder = store.holder("reader");
    let key = Key(ContentHash::of(b"a stage on an input"));
    if let Claim::Compute(ticket) = store.claim(&key, &holder).unwrap() {
        ticket.publish(vec![store.reserve(spec("result".to_owned()), &holder).unwrap()]).unwrap();
    }
    criterion.bench_function("claim that finds its result", |bencher| {
        bencher.iter(|| assert!(matches!(store.claim(&key, &holder).unwrap(), Claim::Ready(_))));
    });
}

/// A store whose budget `tensors` leased tensors use up.
fn refused(criterion: &mut Criterion) {
    for tensors in [1_000, 9_400, 63_000] {
        let store = LocalStore::builder().max_memory_bytes(tensors * 3072).build();
        let holder = store.holder("producer");
        let publish = |name: u64| store.reserve(spec(name.to_string()), &holder)?.publish();
        let leased: Vec<_> = (0..tensors).map(|name| publish(name).unwrap()).collect();
        criterion.bench_function(&format!("refused publication beside {tensors} leased tensors"), |bencher| {
            bencher.iter(|| publish(tensors).map(drop).unwrap_err());
        });
        drop(leased);
    }
}

criterion_group!(group, benches, refused);
criterion_main!(group);
