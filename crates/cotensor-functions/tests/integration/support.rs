//! Helpers of the tests.

pub(crate) use cotensor_daemon::testing::{put, until};

use cotensor_functions::{Arguments, CallError, Context, Failure, Managed, Value};
use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

/// An object that counts the objects of its kind.
pub(crate) struct Tracked(pub(crate) Arc<AtomicI64>);

impl Managed for Tracked {
    fn call(&self, method: &str, _: &Arguments, _: &Context) -> Result<Value, Failure> {
        Err(Failure::no_method(method))
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A door at which functions wait until the test opens it.
#[derive(Default)]
pub(crate) struct Door {
    open: Mutex<bool>,
    opened: Condvar,
    waiting: AtomicUsize,
}

impl Door {
    pub(crate) fn pass(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut open = self.open.lock().unwrap();
        while !*open {
            open = self.opened.wait(open).unwrap();
        }
    }

    pub(crate) fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    pub(crate) fn waits_for(&self, count: usize) {
        until(&format!("{count} at the door"), || self.waiting.load(Ordering::SeqCst) >= count);
    }
}

/// A door that counts the threads at it.
#[derive(Default)]
pub(crate) struct Counted {
    pub(crate) door: Door,
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Counted {
    pub(crate) fn pass(&self) {
        self.most.fetch_max(self.now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        self.door.pass();
        self.now.fetch_sub(1, Ordering::SeqCst);
    }

    /// The maximum number of threads at a time.
    pub(crate) fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }
}

pub(crate) fn int(value: Result<Value, CallError>) -> i64 {
    value.unwrap().as_int().unwrap()
}

pub(crate) fn none() -> Arguments {
    Arguments::new()
}

/// Open memory files of at least `bytes` bytes, as often as this process has a descriptor of them.
pub(crate) fn memory_files(bytes: u64) -> usize {
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let is_large = |path: &Path| {
        std::fs::read_link(path).is_ok_and(|target| target.to_string_lossy().contains("memfd:"))
            && std::fs::metadata(path).is_ok_and(|file| file.len() >= bytes)
    };
    open.filter(|entry| is_large(&entry.as_ref().unwrap().path())).count()
}
