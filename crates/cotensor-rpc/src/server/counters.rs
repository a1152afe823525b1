//! Counts of errors.

use cotensor_core::sync::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// The most codes with a count of their own: functions choose codes freely.
const CODES_MAX: usize = 64;
/// Counts all other codes.
const OTHER_CODES: i32 = 0;

/// Counts of errors by JSON-RPC code.
#[derive(Default)]
pub struct ErrorCounts(Mutex<BTreeMap<i32, u64>>);

impl ErrorCounts {
    pub(super) fn add(&self, code: i32) {
        let mut counts = lock(&self.0);
        let room = counts.len() < CODES_MAX || counts.contains_key(&code);
        *counts.entry(if room { code } else { OTHER_CODES }).or_default() += 1;
    }

    /// The count of each code. Code 0 stands for all codes beyond the table's size.
    pub fn get(&self) -> BTreeMap<i32, u64> {
        lock(&self.0).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_codes_do_not_grow_the_table() {
        let errors = ErrorCounts::default();
        (1..10_000).for_each(|code| errors.add(code));
        let counts = errors.get();
        assert_eq!((counts.len(), counts.values().sum::<u64>()), (CODES_MAX + 1, 9_999));
        assert_eq!((counts[&1], counts[&OTHER_CODES]), (1, 9_999 - CODES_MAX as u64));
    }
}
