//! What tests of functions have in common.

use super::spec;
use cotensor_functions::{Arguments, CallError, Context, Failure, Managed, Value};
use cotensor_store::{CopyReason, Lease, Store};
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// An object that counts how many of it there are.
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

/// A door that functions wait at until the test opens it.
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

/// A door that counts how many stand at it at a time.
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

    /// The most that there were at a time.
    pub(crate) fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }
}

pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}: not so after a minute");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn put(store: &dyn Store, name: &str, bytes: &[u8]) -> Lease {
    let mut reservation = store.reserve(spec(name, bytes.len()), &store.holder("")).unwrap();
    reservation.write(bytes, CopyReason::Put).unwrap();
    reservation.publish().unwrap()
}

pub(crate) fn int(value: Result<Value, CallError>) -> i64 {
    value.unwrap().as_int().unwrap()
}

pub(crate) fn none() -> Arguments {
    Arguments::new()
}
