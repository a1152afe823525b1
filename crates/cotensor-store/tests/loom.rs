//! Every interleaving of the lease count's operations, and of the slots by which readers know their versions. Run with `RUSTFLAGS="--cfg loom"`.
#![cfg(loom)]

use cotensor_store::backend::{LeaseCount, Released};
use cotensor_store::{VersionWord, VersionWords, WordTable};
use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use loom::sync::{Arc, Mutex};
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

/// The words of an index, as another process maps them.
struct Table([AtomicU64; 2]);

impl WordTable for Table {
    fn count(&self) -> u32 {
        2
    }

    fn set(&self, word: u32, value: u64) {
        self.0[word as usize].store(value, Ordering::Release);
    }
}

/// Two names and the newest version of each, behind its lock as the store has it.
struct Names {
    slots: VersionWords<Table>,
    newest: [Mutex<u64>; 2],
}

impl Names {
    fn new() -> Arc<Self> {
        let slots = VersionWords::new(Table([AtomicU64::new(0), AtomicU64::new(0)]));
        Arc::new(Self { slots, newest: [Mutex::new(1), Mutex::new(1)] })
    }

    /// What a publication does: the slot ends before anybody can be given the new version.
    fn publish(&self, name: u64, version: u64) {
        let mut newest = self.newest[name as usize].lock().unwrap();
        self.slots.end(name);
        *newest = version;
    }

    /// What a get does: a version, and where it can be seen to be the newest.
    fn get(&self, name: u64) -> (u64, Option<VersionWord>) {
        let version = *self.newest[name as usize].lock().unwrap();
        (version, self.place(name, version))
    }

    fn place(&self, name: u64, version: u64) -> Option<VersionWord> {
        self.slots.place(name, version, || *self.newest[name as usize].lock().unwrap() == version)
    }

    /// What a client does that asks nobody.
    fn is_valid(&self, place: VersionWord) -> bool {
        self.slots.words().0[place.word as usize].load(Ordering::Acquire) == place.generation
    }
}

#[test]
fn no_reader_takes_an_older_version_for_the_newest() {
    loom::model(|| {
        let names = Names::new();
        let writer = Arc::clone(&names);
        let writer = thread::spawn(move || writer.publish(0, 2));
        let other = Arc::clone(&names);
        let other = thread::spawn(move || other.get(0));
        let mine = names.get(0);
        let theirs = other.join().unwrap();
        writer.join().unwrap();
        for (version, place) in [mine, theirs] {
            assert!(
                version == 2 || place.is_none_or(|place| !names.is_valid(place)),
                "version 1 is said to be the newest"
            );
        }
        // Whoever asks now is given a slot, or asks each time: never a wrong one.
        let (version, place) = names.get(0);
        assert!(version == 2 && place.is_some_and(|place| names.is_valid(place)));
    });
}

#[test]
fn who_sees_a_valid_slot_sees_no_newer_version_yet() {
    loom::model(|| {
        let names = Names::new();
        let place = names.get(0).1.unwrap();
        let writer = Arc::clone(&names);
        let published = Arc::new(AtomicUsize::new(0));
        let told = Arc::clone(&published);
        let writer = thread::spawn(move || {
            writer.publish(0, 2);
            told.store(1, Ordering::Release);
        });
        let known = published.load(Ordering::Acquire) == 1;
        assert!(!(known && names.is_valid(place)), "what was heard of was not seen");
        writer.join().unwrap();
        assert!(!names.is_valid(place));
    });
}

#[test]
fn a_slot_that_passes_to_another_name_is_not_taken_for_the_former() {
    loom::model(|| {
        let names = Names::new();
        let (first, second) = (names.get(0).1.unwrap(), names.get(1).1.unwrap());
        let writer = Arc::clone(&names);
        // Both names end, and their slots are given out again, perhaps crosswise.
        let writer = thread::spawn(move || {
            writer.publish(0, 2);
            writer.get(0)
        });
        names.publish(1, 2);
        let mine = names.get(1);
        let theirs = writer.join().unwrap();
        assert!(!names.is_valid(first) && !names.is_valid(second));
        let (mine, theirs) = (mine.1.unwrap(), theirs.1.unwrap());
        assert!(names.is_valid(mine) && names.is_valid(theirs) && mine.word != theirs.word);
        assert!(mine.generation != theirs.generation);
    });
}
