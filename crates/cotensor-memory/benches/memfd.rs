//! The cost of shared memory: new, prefaulted and reused. Prints the best and the median of several rounds. With the argument `sizes`, copies and new
//! memory of several sizes, as medians of interleaved rounds.

use cotensor_core::{HeapMemory, Memory, Segment, SegmentMut};
use cotensor_memory::{
    Guarantee, MemfdMemory, MemfdMut, MemfdPool, SealedMemfd, Slab, copy_parallel, copy_parallel_again,
};
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

const LEN: usize = 256 << 20;
const ROUNDS: usize = 9;

fn main() {
    if std::env::args().any(|argument| argument == "sizes") {
        return sizes();
    }
    println!("256 MiB in one block, {ROUNDS} rounds{:>30}{:>12}{:>12}", "best", "median", "GB/s");
    let source = vec![3; LEN];
    let mut target = vec![1; LEN];
    report("memcpy, 1 thread", || (), |()| target.copy_from_slice(&source));
    report("memcpy, parallel", || (), |()| copy_parallel(&mut target, &source));
    drop(target);

    report("heap: copy and publish", || (), |()| publish(&HeapMemory, &source));
    report("new memfd: copy and publish", || (), |()| publish(&MemfdMemory, &source));
    let pool = MemfdPool::new(2 * LEN);
    report("prefaulted pool: copy and publish", || pool.prefault(LEN, 1), |_| publish(&pool, &source));
    // The pause gives the prefault thread the time that a program takes to compute the next tensor.
    let pause = || std::thread::sleep(Duration::from_millis(200));
    report("series from a pool, with pauses", pause, |()| publish(&pool, &source));
    report("series from a pool, without pauses", || (), |()| publish(&pool, &source));
    let slab = Slab::create(LEN).expect("memory for a slab");
    report("slab, first use: copy and publish", || Slab::create(LEN), |slab| publish(&slab.expect("memory"), &source));
    report("slab, reused: copy and publish", || (), |()| publish(&slab, &source));
    drop(slab);

    report("creating a memfd", || (), |()| MemfdMut::create(LEN));
    report("creating and prefaulting a memfd", || (), |()| MemfdMut::create(LEN).map(|memfd| memfd.prefault()));
    let full = || {
        let mut memfd = MemfdMut::create(LEN).expect("memory");
        memfd.write_at(0, &source).expect("equal lengths");
        memfd
    };
    report("freeing a memfd", full, drop);
    report("sealing", full, |memfd| memfd.seal());
    let sealed = full().seal().expect("no other mapping");
    let receive = || {
        let fd = sealed.fd().expect("a memfd").try_clone_to_owned().expect("a descriptor");
        SealedMemfd::open(fd, LEN, Guarantee::Immutable).expect("a sealed memfd")
    };
    report("receiving: check and map", || (), |()| receive());
    report("receiving: first read", receive, |received| sum(received.bytes().unwrap_or_default()));
    let again = receive();
    report("receiving: second read", || (), |()| sum(again.bytes().unwrap_or_default()));

    small();
}

/// Copies into memory that was used before, and copies into new memory with sealing, in microseconds.
fn sizes() {
    let columns = ["copy", "several threads", "started threads", "reserved first", "made by the copy"];
    println!("{:>9} KiB{}", "", columns.map(|column| format!("{column:>18}")).concat());
    for kib in [600, 1126, 2458, 4096, 6144, 8192, 16 << 10, 64 << 10, 128 << 10] {
        let source = vec![3; kib << 10];
        let mut target = vec![1; kib << 10];
        let rounds = (200 * 1024 / kib).clamp(7, 101);
        let mut times = [(); 5].map(|()| Vec::new());
        for _ in 0..rounds {
            times[0].push(timed(|| target.copy_from_slice(&source)));
            times[1].push(timed(|| copy_parallel_again(&mut target, &source)));
            times[2].push(timed(|| copy_on_started_threads(&mut target, &source)));
            times[3].push(timed(|| publish_reserved(&source)));
            times[4].push(timed(|| publish(&MemfdPool::new(0), &source)));
        }
        let medians = times.map(|mut each| {
            each.sort();
            format!("{:>18.0}", each[rounds / 2].as_secs_f64() * 1e6)
        });
        println!("{kib:>13}{}", medians.concat());
    }
}

/// Into memory that was reserved, and faulted in unless several threads share the faults, before the copy.
fn publish_reserved(source: &[u8]) -> SealedMemfd {
    let mut memfd = MemfdMut::create(source.len()).expect("memory");
    if source.len() < 8 << 20 {
        memfd.prefault().expect("memory");
    }
    memfd.write_at(0, source).expect("equal lengths");
    memfd.seal().expect("no other mapping")
}

/// The time without the release of the result.
fn timed<R>(work: impl FnOnce() -> R) -> Duration {
    let start = Instant::now();
    let result = black_box(work());
    let took = start.elapsed();
    drop(result);
    took
}

/// A copy on two threads, of which one is started for it.
fn copy_on_started_threads(target: &mut [u8], source: &[u8]) {
    let (first, second) = target.split_at_mut(source.len() / 2);
    std::thread::scope(|threads| {
        threads.spawn(|| second.copy_from_slice(&source[source.len() / 2..]));
        first.copy_from_slice(&source[..source.len() / 2]);
    });
}

fn publish(memory: &dyn Memory, source: &[u8]) -> Arc<dyn Segment> {
    memory.copy_of(source).and_then(|segment| segment.freeze()).expect("memory")
}

fn sum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(8).map(|word| word.iter().fold(0, |all, &byte| all << 8 | u64::from(byte)));
    words.fold(0, u64::wrapping_add)
}

/// Times `work` on the result of `prepare`. The time to drop its own result does not count.
fn report<T, R>(what: &str, mut prepare: impl FnMut() -> T, mut work: impl FnMut(T) -> R) {
    let mut times: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let prepared = prepare();
            let start = Instant::now();
            let result = black_box(work(prepared));
            let took = start.elapsed();
            drop(result);
            took
        })
        .collect();
    times.sort();
    let (best, median) = (times[0].as_secs_f64(), times[ROUNDS / 2].as_secs_f64());
    println!("{what:<45}{:>9.3} ms{:>9.3} ms{:>12.2}", best * 1e3, median * 1e3, LEN as f64 / best / 1e9);
}

/// Times the publication of small tensors.
fn small() {
    let slab = Slab::create(1 << 20).expect("memory for a slab");
    let source = [1; 3072];
    for (what, memory) in [("slab", &slab as &dyn Memory), ("heap", &HeapMemory), ("memfd", &MemfdMemory)] {
        let rounds = if what == "memfd" { 2000 } else { 100_000 };
        let start = Instant::now();
        (0..rounds).for_each(|_| drop(black_box(publish(memory, &source))));
        println!("3 KiB by copy, {what:<6}: {:.0} ns", start.elapsed().as_secs_f64() * 1e9 / f64::from(rounds));
    }
}
