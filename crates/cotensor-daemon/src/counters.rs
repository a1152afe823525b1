//! What the daemon counts about its calls; the store counts the rest.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Distinct codes that are counted apart; providers may invent more than that.
const CODES_MAX: usize = 64;
/// Under which the rest is counted.
const OTHER_CODES: i32 = 0;

/// Calls that came to one method.
#[derive(Default)]
pub(crate) struct Calls(AtomicU64);

impl Calls {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Errors by JSON-RPC code.
#[derive(Default)]
pub(crate) struct Errors(Mutex<BTreeMap<i32, u64>>);

impl Errors {
    pub(crate) fn add(&self, code: i32) {
        let mut counts = self.lock();
        let room = counts.len() < CODES_MAX || counts.contains_key(&code);
        *counts.entry(if room { code } else { OTHER_CODES }).or_default() += 1;
    }

    pub(crate) fn get(&self) -> BTreeMap<i32, u64> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<i32, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invented_codes_do_not_make_the_table_grow() {
        let errors = Errors::default();
        (1..10_000).for_each(|code| errors.add(code));
        let counts = errors.get();
        assert_eq!((counts.len(), counts.values().sum::<u64>()), (CODES_MAX + 1, 9_999));
        assert_eq!((counts[&1], counts[&OTHER_CODES]), (1, 9_999 - CODES_MAX as u64));
    }
}
