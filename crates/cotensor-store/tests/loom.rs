//! Every interleaving of the lease count's operations. Run with `RUSTFLAGS="--cfg loom"`.
#![cfg(loom)]

use cotensor_store::count::{LeaseCount, Released};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

/// A count, and how often its tensor was freed.
#[derive(Default)]
struct Tensor {
    leases: LeaseCount,
    freed: AtomicUsize,
}

impl Tensor {
    /// What a lease's drop does for a tensor that is not kept.
    fn release(&self, holder: u32) {
        if self.leases.release(holder) == Released::Last && self.leases.close() {
            self.freed.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn evict(&self) {
        if self.leases.close() {
            self.freed.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn freed(&self) -> usize {
        self.freed.load(Ordering::SeqCst)
    }
}

#[test]
fn the_last_of_two_releases_frees_once() {
    loom::model(|| {
        let tensor = Arc::new(Tensor::default());
        assert!(tensor.leases.acquire(1) && tensor.leases.acquire(2));
        let other = Arc::clone(&tensor);
        let thread = thread::spawn(move || other.release(2));
        tensor.release(1);
        thread.join().unwrap();
        assert_eq!(tensor.freed(), 1);
        assert!(!tensor.leases.acquire(1));
    });
}

#[test]
fn whoever_acquires_finds_the_tensor_alive() {
    loom::model(|| {
        let tensor = Arc::new(Tensor::default());
        assert!(tensor.leases.acquire(1));
        let reader = Arc::clone(&tensor);
        let reader = thread::spawn(move || {
            if reader.leases.acquire(2) {
                assert_eq!(reader.freed(), 0, "freed under a reader");
                reader.release(2);
            }
        });
        let evictor = Arc::clone(&tensor);
        let evictor = thread::spawn(move || evictor.evict());
        tensor.release(1);
        reader.join().unwrap();
        evictor.join().unwrap();
        assert_eq!(tensor.freed(), 1, "freed once, by whoever was last");
    });
}

#[test]
fn a_pack_goes_as_a_whole_or_stays() {
    loom::model(|| {
        let pack = Arc::new([LeaseCount::default(), LeaseCount::default()]);
        let evictor = Arc::clone(&pack);
        let evictor = thread::spawn(move || LeaseCount::close_all(&[&evictor[0], &evictor[1]]));
        let first = pack[0].acquire(1);
        let second = pack[1].acquire(1);
        let evicted = evictor.join().unwrap();
        // A reader can come too late for both or for the second alone never: closing happens at one moment.
        assert_eq!(first, !evicted);
        assert_eq!(second, !evicted);
    });
}

#[test]
fn two_evictors_free_once() {
    loom::model(|| {
        let tensor = Arc::new(Tensor::default());
        let other = Arc::clone(&tensor);
        let thread = thread::spawn(move || other.evict());
        tensor.evict();
        thread.join().unwrap();
        assert_eq!(tensor.freed(), 1);
    });
}
