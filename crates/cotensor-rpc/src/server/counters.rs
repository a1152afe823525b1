//! Counts of calls and errors.

use cotensor_core::sync::lock;
use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The most codes with a count of their own: functions choose codes freely.
const CODES_MAX: usize = 64;
/// Counts all other codes.
const OTHER_CODES: i32 = 0;

/// Counts of calls by method, and of errors by JSON-RPC code.
#[derive(Default)]
pub struct CallCounts {
    calls: HashMap<&'static str, AtomicU64>,
    errors: Mutex<BTreeMap<i32, u64>>,
}

impl CallCounts {
    /// Counts the calls of these methods, and of no others.
    pub fn of(methods: impl Iterator<Item = &'static str>) -> Self {
        Self { calls: methods.map(|method| (method, AtomicU64::new(0))).collect(), errors: Mutex::default() }
    }

    pub(super) fn add_call(&self, method: &str) {
        if let Some(calls) = self.calls.get(method) {
            calls.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn add_error(&self, code: i32) {
        let mut counts = lock(&self.errors);
        let room = counts.len() < CODES_MAX || counts.contains_key(&code);
        *counts.entry(if room { code } else { OTHER_CODES }).or_default() += 1;
    }

    /// Each method's name and number of calls, in no order.
    pub fn calls(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.calls.iter().map(|(method, calls)| (*method, calls.load(Ordering::Relaxed)))
    }

    /// The count of each code. Code 0 stands for all codes beyond the table's size.
    pub fn errors(&self) -> BTreeMap<i32, u64> {
        lock(&self.errors).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_known_methods_are_counted() {
        let counts = CallCounts::of(["put", "get"].into_iter());
        ["put", "other", "put"].iter().for_each(|method| counts.add_call(method));
        assert_eq!(counts.calls().collect::<BTreeMap<_, _>>(), BTreeMap::from([("get", 0), ("put", 2)]));
    }

    #[test]
    fn unknown_codes_do_not_grow_the_table() {
        let errors = CallCounts::default();
        (1..10_000).for_each(|code| errors.add_error(code));
        let counts = errors.errors();
        assert_eq!((counts.len(), counts.values().sum::<u64>()), (CODES_MAX + 1, 9_999));
        assert_eq!((counts[&1], counts[&OTHER_CODES]), (1, 9_999 - CODES_MAX as u64));
    }
}
