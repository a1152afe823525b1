//! Small arguments and results in connection arenas: no requests to the daemon, and the same guarantees as for
//! published tensors.

use crate::support::{Door, int, memory_files, none, put, until};
use cotensor_daemon::testing::{Running, spec};
use cotensor_functions::{
    Arguments, Cache, Context, Failure, Functions, Limits, Options, Provider, TensorAllocator, Value,
};
use cotensor_store::{CopyReason, Lease, StoreReports, TensorStore};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const BYTES: usize = 100_000;

/// A tensor of `bytes` equal bytes from `allocator`.
fn made(allocator: &TensorAllocator, bytes: usize, byte: u8) -> Lease {
    let holder = allocator.store().holder("test");
    let mut reservation = allocator.reserve(spec("made", bytes), &holder).unwrap();
    reservation.write(&vec![byte; bytes], CopyReason::Put).unwrap();
    reservation.publish().unwrap()
}

fn is_all(value: &Value, byte: u8) -> bool {
    let bytes = value.as_tensor().unwrap().bytes().unwrap();
    bytes == vec![byte; bytes.len()]
}

/// A provider of `next`, which returns a tensor of the same size whose bytes are one greater.
fn next(running: &Running) -> Provider {
    next_within(running, Limits::default())
}

fn next_within(running: &Running, limits: Limits) -> Provider {
    let next = |arguments: &Arguments, context: &Context| {
        let tensor = arguments.get(0, "tensor")?.as_tensor()?.clone();
        let byte = tensor.bytes().unwrap_or_default().first().copied().unwrap_or(0);
        Ok(made(context.allocator(), tensor.bytes().unwrap_or_default().len(), byte.wrapping_add(1)).into())
    };
    let builder = Provider::builder(running.connect("provider")).limits(limits);
    builder.function("next", Options::default(), next).start().unwrap()
}

#[test]
fn small_tensors_need_no_daemon_request_and_reuse_memory() {
    let running = Running::start(|_| {});
    let _provider = next(&running);
    let functions = Functions::new(running.connect("caller"));
    let allocator = functions.allocator("next", &None.into()).unwrap();
    let (mut addresses, mut kept) = (BTreeSet::new(), Vec::new());
    for round in 0..2000_usize {
        let byte = (round % 251) as u8;
        let argument = made(&allocator, BYTES, byte);
        addresses.insert(argument.bytes().unwrap().as_ptr() as usize);
        let result = functions.call("next", &none().arg(argument)).unwrap();
        assert!(is_all(&result, byte + 1), "{round}");
        if round % 400 == 0 {
            kept.push((result, byte + 1));
        }
        assert_eq!(running.daemon.store().stats().total_tensors, 0, "{round}");
    }
    assert!(addresses.len() <= 4, "{} addresses for one argument at a time", addresses.len());
    assert!(kept.iter().all(|(result, byte)| is_all(result, *byte)), "a result stays while it is leased");
    let empty = functions.call("next", &none().arg(made(&allocator, 0, 0))).unwrap();
    assert!(empty.as_tensor().unwrap().bytes().unwrap().is_empty());
}

/// The most bytes that were published at a time since the daemon started.
fn most_published(running: &Running) -> u64 {
    running.daemon.store().stats().peak_memory_bytes
}

#[test]
fn tensors_of_every_size_up_to_64_mib_need_no_daemon_request() {
    let running = Running::start(|_| {});
    let _provider = next(&running);
    let functions = Functions::new(running.connect("caller"));
    let allocator = functions.allocator("next", &None.into()).unwrap();
    // With the first answer the caller knows that the provider closes slabs.
    functions.call("next", &none().arg(made(&allocator, 1, 0))).unwrap();
    for bytes in [256 << 10, (256 << 10) + 1, 600_000, 1_100_000, 2_400_000, 8 << 20, 16 << 20, 64 << 20] {
        let mut addresses = BTreeSet::new();
        for byte in 1..7 {
            let argument = made(&allocator, bytes, byte);
            addresses.insert(argument.bytes().unwrap().as_ptr() as usize);
            let result = functions.call("next", &none().arg(argument)).unwrap();
            assert!(is_all(&result, byte + 1), "{bytes}");
        }
        assert!(addresses.len() <= 4, "{} addresses of {bytes} bytes", addresses.len());
        assert_eq!(most_published(&running), 0, "{bytes}");
    }
}

#[test]
fn concurrent_callers_of_mixed_sizes_get_their_own_bytes() {
    let running = Running::start(|_| {});
    let _provider = next(&running);
    let shared = Functions::new(running.connect("caller"));
    std::thread::scope(|threads| {
        for thread in 0..8_usize {
            let (running, shared) = (&running, &shared);
            threads.spawn(move || {
                // Half of them over one connection.
                let own = (thread % 2 == 0).then(|| Functions::new(running.connect("caller")));
                let functions = own.as_ref().unwrap_or(shared);
                let allocator = functions.allocator("next", &None.into()).unwrap();
                let mut held = Vec::new();
                for round in 0..30 {
                    let bytes = [1000, 300_000, 1_100_000, 2_400_000, 5 << 20, 100_000][(thread + round) % 6];
                    let byte = (thread * 30 + round) as u8;
                    let result = functions.call("next", &none().arg(made(&allocator, bytes, byte))).unwrap();
                    held.push((result, byte.wrapping_add(1)));
                    if held.len() > round % 4 {
                        held.remove(0);
                    }
                    assert!(held.iter().all(|(result, byte)| is_all(result, *byte)), "{thread} {round}");
                }
            });
        }
    });
}

#[test]
fn idle_memory_is_given_back_by_both_ends() {
    let running = Running::start(|_| {});
    let idle = Duration::from_millis(100);
    let watcher = running.connect("watcher");
    let provider = next_within(&running, Limits { memory_idle: idle, ..Limits::default() });
    let functions = Functions::new(running.connect("caller")).with_memory_idle(idle);
    let allocator = functions.allocator("next", &None.into()).unwrap();
    functions.call("next", &none().arg(made(&allocator, 1, 0))).unwrap();
    for round in 0..2 {
        let result = functions.call("next", &none().arg(made(&allocator, 3 << 20, 1))).unwrap();
        assert!(memory_files(3 << 20) >= 4, "an argument and a result, each at both ends");
        until("the daemon shows both", || watcher.stats().ready_bytes >= 6 << 20);
        until("the block of the argument is given back", || memory_files(3 << 20) == 2);
        assert!(is_all(&result, 2), "{round}");
        drop(result);
        until("the block of the result is given back", || memory_files(3 << 20) == 0);
        until("the daemon shows neither, nor the slabs of small tensors", || watcher.stats().ready_bytes == 0);
    }
    // Blocks of a connection end with it.
    let kept = functions.call("next", &none().arg(made(&allocator, 3 << 20, 5))).unwrap();
    drop((provider, allocator));
    assert!(is_all(&kept, 6));
    drop((kept, functions));
    until("all blocks have gone", || memory_files(3 << 20) == 0);
    until("the daemon shows no memory", || watcher.stats().ready_bytes == 0);
    assert_eq!(most_published(&running), 0);
}

#[test]
fn tensors_beyond_the_arena_are_published() {
    let running = Running::start(|_| {});
    let provider = next(&running);
    let functions = Functions::new(running.connect("caller"));
    let allocator = functions.allocator("next", &None.into()).unwrap();
    let large = functions.call("next", &none().arg(made(&allocator, (64 << 20) + 1, 1))).unwrap();
    assert!(is_all(&large, 2) && running.daemon.store().stats().total_tensors > 0);
    drop(large);
    until("all tensors are released", || running.daemon.store().stats().total_tensors == 0);
    let held: Vec<_> = (0..140_u8).map(|byte| (made(&allocator, 300_000, byte), byte)).collect();
    let results: Vec<_> = held
        .into_iter()
        .map(|(argument, byte)| (functions.call("next", &none().arg(argument)).unwrap(), byte + 1))
        .collect();
    assert!(running.daemon.store().stats().total_tensors > 0, "140 tensors exceed the blocks");
    drop(provider);
    assert!(results.iter().all(|(result, byte)| is_all(result, *byte)), "results outlive their provider");
    drop(results);
    until("all tensors are released", || running.daemon.store().stats().total_tensors == 0);
}

#[test]
fn argument_stays_until_an_abandoned_call_ends() {
    let running = Running::start(|_| {});
    let door = Arc::new(Door::default());
    let right = Arc::new(AtomicBool::new(false));
    let provider = {
        let (door, right) = (door.clone(), right.clone());
        Provider::builder(running.connect("provider"))
            .function("slow", Options::default(), move |arguments, _| {
                door.pass();
                right.store(is_all(arguments.get(0, "tensor")?, 1), Ordering::SeqCst);
                Ok(Value::Null)
            })
            .function("look", Options::default(), |arguments, _| {
                Ok(Value::Int(i64::from(is_all(arguments.get(0, "tensor")?, 2))))
            })
            .start()
            .unwrap()
    };
    let functions = Functions::new(running.connect("caller"));
    let allocator = functions.allocator("slow", &None.into()).unwrap();
    let slow = none().arg(made(&allocator, BYTES, 1));
    assert!(
        functions.call_within("slow", &slow, Some(Duration::from_millis(20))).is_err(),
        "the function waits at the door"
    );
    drop(slow);
    for _ in 0..200 {
        assert_eq!(int(functions.call("look", &none().arg(made(&allocator, BYTES, 2)))), 1);
    }
    door.open();
    until("the slow function has read its argument", || right.load(Ordering::SeqCst));
    drop(provider);
}

#[test]
fn arena_tensor_outlives_its_connection_and_can_be_passed_on() {
    let running = Running::start(|_| {});
    let kept: Arc<Mutex<Vec<Value>>> = Arc::default();
    let _provider = {
        let (kept, onwards) = (kept.clone(), Functions::new(running.connect("in between")));
        Provider::builder(running.connect("keeping"))
            .function("keep", Options::default(), move |arguments, _| {
                let value = arguments.get(0, "tensor")?.clone();
                let passed = onwards.call("next", &none().arg(value.clone()));
                kept.lock().unwrap().push(value);
                passed.map_err(|error| Failure::new("onwards", error.to_string()))
            })
            .start()
            .unwrap()
    };
    let _next = next(&running);
    for byte in [1, 2, 3] {
        let functions = Functions::new(running.connect("caller"));
        let allocator = functions.allocator("keep", &None.into()).unwrap();
        let passed = functions.call("keep", &none().arg(made(&allocator, BYTES, byte))).unwrap();
        assert!(is_all(&passed, byte + 1), "through two providers");
        // A tensor in one connection's arena can be an argument of another provider.
        let again = functions.call("next", &none().arg(made(&allocator, BYTES, byte))).unwrap();
        assert!(is_all(&again, byte + 1));
    }
    for (value, byte) in kept.lock().unwrap().iter().zip([1, 2, 3]) {
        assert!(is_all(value, byte), "its caller has disconnected");
    }
}

#[test]
fn cached_results_are_shared_by_all_callers() {
    let running = Running::start(|_| {});
    let options = Options { cache: Some(Cache { ttl: Duration::MAX, capacity: 8 }), ..Options::default() };
    let runs = Arc::new(Mutex::new(0));
    let counted = runs.clone();
    let _provider = Provider::builder(running.connect("provider"))
        .function("same", options, move |arguments, context| {
            *counted.lock().unwrap() += 1;
            Ok(made(context.allocator(), BYTES, arguments.get(0, "tensor")?.as_tensor()?.bytes().unwrap()[0]).into())
        })
        .start()
        .unwrap();
    for _ in 0..3 {
        let store = running.connect("caller");
        let functions = Functions::new(store.clone());
        let in_arena = functions
            .call("same", &none().arg(made(&functions.allocator("same", &None.into()).unwrap(), 10, 7)))
            .unwrap();
        let published = functions.call("same", &none().arg(put(&*store, "x", &[7; 10]))).unwrap();
        assert!(is_all(&in_arena, 7) && is_all(&published, 7));
        let (one, other) = (in_arena.as_tensor().unwrap(), published.as_tensor().unwrap());
        assert_eq!(one.bytes().unwrap().as_ptr(), other.bytes().unwrap().as_ptr(), "one cached result");
    }
    assert_eq!(*runs.lock().unwrap(), 1, "equal contents by arena and by store");
}
