//! Model-checks every interleaving of leases and of version words. It is a program of its own, because the whole crate
//! is compiled for loom: `make loom`.
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use cotensor_core::{DType, HeapMemory, Memory};
use cotensor_store::backend::{Budget, LeaseBackend, Record, RecordParts};
use cotensor_store::{CopyReason, Holder, Lease, TensorId, TensorSpec, VersionWord, VersionWords, WordTable};
use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;
use std::time::Duration;

/// A backend that counts the records that it frees, as a store does.
#[derive(Default)]
struct Backend {
    freed: AtomicUsize,
}

impl Backend {
    fn freed(&self) -> usize {
        self.freed.load(Ordering::SeqCst)
    }
}

impl LeaseBackend for Backend {
    fn release(&self, record: &std::sync::Arc<Record>) {
        if record.close() {
            self.freed.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn count_copy(&self, _: &str, _: CopyReason, _: usize) {}
}

#[derive(Clone)]
struct Tensor {
    record: std::sync::Arc<Record>,
    backend: std::sync::Arc<Backend>,
}

impl Tensor {
    fn new(retained: bool) -> Self {
        let backend = std::sync::Arc::new(Backend::default());
        let weak: std::sync::Weak<Backend> = std::sync::Arc::downgrade(&backend);
        let spec = TensorSpec::new("x", DType::U8, &[1]);
        let parts = RecordParts {
            id: TensorId { name_id: 1, version: 1 },
            layout: spec.layout().unwrap(),
            spec,
            segment: HeapMemory.reserve(1).unwrap().freeze().unwrap(),
            charge: Budget::new(u64::MAX).take(1).unwrap().into(),
            retained,
            private: None,
            key: None,
            created: Duration::ZERO,
        };
        Self { record: Record::new(parts, weak), backend }
    }

    fn lease(&self, holder: u32) -> Option<Lease> {
        self.record.lease(&Holder::new(&holder.to_string()))
    }

    /// What an eviction does.
    fn evict(&self) {
        self.backend.release(&self.record);
    }
}

#[test]
fn last_of_two_leases_frees_once() {
    loom::model(|| {
        let tensor = Tensor::new(false);
        let (first, second) = (tensor.lease(1).unwrap(), tensor.lease(2).unwrap());
        let thread = thread::spawn(move || drop(second));
        drop(first);
        thread.join().unwrap();
        assert_eq!(tensor.backend.freed(), 1);
        assert!(tensor.lease(1).is_none());
    });
}

#[test]
fn leased_tensor_is_not_freed() {
    loom::model(|| {
        let tensor = Tensor::new(false);
        let lease = tensor.lease(1).unwrap();
        let reading = tensor.clone();
        let reader = thread::spawn(move || {
            if let Some(lease) = reading.lease(2) {
                assert_eq!(reading.backend.freed(), 0, "freed under a reader");
                drop(lease);
            }
        });
        let evicting = tensor.clone();
        let evictor = thread::spawn(move || evicting.evict());
        drop(lease);
        reader.join().unwrap();
        evictor.join().unwrap();
        assert_eq!(tensor.backend.freed(), 1);
    });
}

#[test]
fn removed_tensor_is_freed_once_by_its_name_or_by_its_last_lease() {
    loom::model(|| {
        let tensor = Tensor::new(true);
        let lease = tensor.lease(1).unwrap();
        let thread = thread::spawn(move || drop(lease));
        // What a store does when a name is removed or published again.
        tensor.record.stop_retaining();
        tensor.backend.release(&tensor.record);
        thread.join().unwrap();
        assert_eq!(tensor.backend.freed(), 1);
    });
}

#[test]
fn pack_is_closed_as_a_whole_or_not_at_all() {
    loom::model(|| {
        let pack = [Tensor::new(true), Tensor::new(true)];
        let closing = pack.clone();
        let evictor = thread::spawn(move || Record::close_all(&[&closing[0].record, &closing[1].record]));
        let (first, second) = (pack[0].lease(1), pack[1].lease(1));
        let evicted = evictor.join().unwrap();
        assert_eq!((first.is_none(), second.is_none()), (evicted, evicted));
    });
}

#[test]
fn two_evictions_free_once() {
    loom::model(|| {
        let tensor = Tensor::new(true);
        let other = tensor.clone();
        let thread = thread::spawn(move || other.evict());
        tensor.evict();
        thread.join().unwrap();
        assert_eq!(tensor.backend.freed(), 1);
    });
}

/// The shared words, which other processes map.
struct Table([AtomicU64; 2]);

impl WordTable for Table {
    fn count(&self) -> u32 {
        2
    }

    fn set(&self, word: u32, value: u64) {
        self.0[word as usize].store(value, Ordering::Release);
    }
}

/// Two names and the newest version of each, behind its lock as in the store.
struct Names {
    words: VersionWords<Table>,
    newest: [Mutex<u64>; 2],
}

impl Names {
    fn new() -> Arc<Self> {
        let words = VersionWords::new(Table([AtomicU64::new(0), AtomicU64::new(0)]));
        Arc::new(Self { words, newest: [Mutex::new(1), Mutex::new(1)] })
    }

    /// What a publication does: it invalidates the word before any caller can lease the new version.
    fn publish(&self, name: u64, version: u64) {
        let mut newest = self.newest[name as usize].lock().unwrap();
        self.words.invalidate(name);
        *newest = version;
    }

    /// As a lookup: returns a version, and the word that shows whether it is the newest.
    fn get(&self, name: u64) -> (u64, Option<VersionWord>) {
        let version = *self.newest[name as usize].lock().unwrap();
        (version, self.word(name, version))
    }

    fn word(&self, name: u64, version: u64) -> Option<VersionWord> {
        self.words.assign(name, version, || *self.newest[name as usize].lock().unwrap() == version)
    }

    /// What a client does instead of a request.
    fn is_valid(&self, word: VersionWord) -> bool {
        self.words.words().0[word.word as usize].load(Ordering::Acquire) == word.generation
    }
}

#[test]
fn valid_word_never_stands_for_an_older_version() {
    loom::model(|| {
        let names = Names::new();
        let writer = Arc::clone(&names);
        let writer = thread::spawn(move || writer.publish(0, 2));
        let other = Arc::clone(&names);
        let other = thread::spawn(move || other.get(0));
        let mine = names.get(0);
        let theirs = other.join().unwrap();
        writer.join().unwrap();
        for (version, word) in [mine, theirs] {
            assert!(
                version == 2 || word.is_none_or(|word| !names.is_valid(word)),
                "version 1 is valid after version 2"
            );
        }
        // A later lookup gets a word of version 2.
        let (version, word) = names.get(0);
        assert!(version == 2 && word.is_some_and(|word| names.is_valid(word)));
    });
}

#[test]
fn word_is_invalid_once_the_publication_is_known() {
    loom::model(|| {
        let names = Names::new();
        let word = names.get(0).1.unwrap();
        let writer = Arc::clone(&names);
        let published = Arc::new(AtomicUsize::new(0));
        let announced = Arc::clone(&published);
        let writer = thread::spawn(move || {
            writer.publish(0, 2);
            announced.store(1, Ordering::Release);
        });
        let known = published.load(Ordering::Acquire) == 1;
        assert!(!(known && names.is_valid(word)), "a word is valid after its publication");
        writer.join().unwrap();
        assert!(!names.is_valid(word));
    });
}

#[test]
fn reused_word_is_invalid_for_its_former_name() {
    loom::model(|| {
        let names = Names::new();
        let (first, second) = (names.get(0).1.unwrap(), names.get(1).1.unwrap());
        let writer = Arc::clone(&names);
        // Both words are invalidated and used again, perhaps for the other name.
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
