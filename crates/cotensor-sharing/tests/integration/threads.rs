//! Many threads use one manager: no handle reads another tensor's bytes, and all memory is freed at the end.

use cotensor_core::{DType, ErrorKind, Result};
use cotensor_sharing::{SharedTensor, TensorSharingManager};
use cotensor_store::LocalStore;
use std::sync::atomic::{AtomicU32, Ordering};

const THREADS: u32 = 4;
const ROUNDS: u32 = 1500;
/// Room for a few tensors only, so that some are evicted.
const BUDGET_BYTES: u64 = 500;

fn unless<T>(kinds: &[ErrorKind], result: Result<T>) -> Option<T> {
    match result {
        Err(error) if kinds.contains(&error.kind()) => None,
        result => Some(result.unwrap()),
    }
}

/// Each tensor is filled with its length, or with zeros if another thread published it before.
fn check(tensor: &SharedTensor) {
    let length = tensor.shape()[0];
    let bytes = tensor.read(<[u8]>::to_vec).unwrap();
    assert!(bytes == vec![0; length] || bytes == vec![length as u8; length], "{length}: {bytes:?}");
    let view = tensor.create_view("last", &[length - 1], &[1]).unwrap();
    assert_eq!(view.read(<[u8]>::to_vec).unwrap(), bytes[length - 1..]);
}

#[derive(Default)]
struct Counters {
    registered: AtomicU32,
    checked: AtomicU32,
}

fn work(manager: &TensorSharingManager, counters: &Counters, thread: u32) {
    let model = format!("m{thread}");
    let mut random = thread + 1;
    for _ in 0..ROUNDS {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let name = format!("t{}", (random >> 16) % 6);
        match (random >> 8) % 8 {
            0 | 1 => {
                let length = 1 + (random >> 20) as usize % 200;
                let new = manager.register_shared_tensor(&name, &[length], "cpu", &model, &[], DType::U8);
                if let Some(tensor) = unless(&[ErrorKind::Conflict, ErrorKind::OverBudget], new) {
                    counters.registered.fetch_add(1, Ordering::Relaxed);
                    unless(&[ErrorKind::Conflict], tensor.write(|bytes| bytes.fill(length as u8)));
                }
            }
            2..=4 => {
                let found = manager.get_shared_tensor(&name, &model);
                if let Some(tensor) = unless(&[ErrorKind::NotFound], found).filter(SharedTensor::is_published) {
                    counters.checked.fetch_add(1, Ordering::Relaxed);
                    check(&tensor);
                    tensor.release(&model).unwrap();
                }
            }
            5 | 6 => drop(manager.release_model_tensors(&model).unwrap()),
            _ => drop(manager.optimize_memory_usage()),
        }
        assert!(manager.get_stats().memory_usage_bytes <= BUDGET_BYTES);
    }
    manager.release_model_tensors(&model).unwrap();
}

#[test]
fn threads_register_share_view_and_free() {
    let store = LocalStore::builder().max_memory_bytes(BUDGET_BYTES).build();
    let (manager, counters) = (TensorSharingManager::with_store(store), Counters::default());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (manager, counters) = (&manager, &counters);
            scope.spawn(move || work(manager, counters, thread));
        }
    });
    assert!(counters.registered.into_inner() > 0 && counters.checked.into_inner() > 0);
    manager.optimize_memory_usage();
    let stats = manager.get_stats();
    assert_eq!((stats.total_tensors, stats.memory_usage_bytes), (0, 0));
    assert_eq!(stats.models, [""; 0]);
}
