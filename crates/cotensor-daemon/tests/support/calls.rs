//! What tests of functions have in common.

use super::spec;
use cotensor_client::functions::{Arguments, CallError, Value};
use cotensor_store::{CopyReason, Lease, Store};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

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

pub(crate) fn until(what: &str, done: impl Fn() -> bool) {
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
