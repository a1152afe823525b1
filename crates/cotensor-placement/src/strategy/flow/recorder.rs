use super::recurring::RecurringOperations;
use crate::trace::Operation;
use std::collections::HashMap;

/// Operations that a recording keeps at most.
const RECORDED_MAX: usize = 1 << 18;
/// Earlier places of an operation that are tried as the end of the last period.
const PLACES_MAX: usize = 8;

/// Operations after which a recording without a period is searched for operations that recur; then after half as many more.
const SEARCH_MIN: usize = 32;

/// Records operations until their last part is the same twice, or until some recur among others.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    keys: Vec<u64>,
    pub(super) operations: Vec<Operation>,
    places: HashMap<u64, Vec<usize>>,
    /// Shorter repetitions are not a period.
    shortest: usize,
    /// Length of the recording at which it is searched again.
    next_search: usize,
}

impl Recorder {
    /// A recorder for periods of at least `shortest` operations.
    pub(super) fn new(shortest: usize) -> Self {
        Self { shortest, next_search: SEARCH_MIN, ..Self::default() }
    }

    /// Adds an operation with its measured time.
    pub(super) fn push(&mut self, operation: Operation) {
        if self.keys.len() >= RECORDED_MAX {
            *self = Self::new(self.shortest);
        }
        let key = operation.key();
        self.places.entry(key).or_default().push(self.keys.len());
        self.keys.push(key);
        self.operations.push(operation);
    }

    /// The period if the last operations are the ones before, once more. A repetition that uses no tensor is none.
    pub(super) fn period(&self) -> Option<Vec<Operation>> {
        let last = self.keys.len().checked_sub(1)?;
        let places = &self.places[&self.keys[last]];
        // The shortest repetition first.
        let found = places.iter().rev().skip(1).take(PLACES_MAX).map(|place| last - place).find(|&length| {
            let start = (last + 1).checked_sub(2 * length);
            length >= self.shortest
                && start.is_some_and(|start| self.keys[start..start + length] == self.keys[start + length..])
                && self.operations[last + 1 - length..].iter().any(|operation| !operation.uses.is_empty())
        });
        found.map(|length| self.operations[last + 1 - length..].to_vec())
    }

    /// The operations that recur, if it is time to search for them.
    pub(super) fn recurring(&mut self) -> Option<RecurringOperations> {
        let length = self.keys.len();
        if length < self.next_search {
            return None;
        }
        self.next_search = length + length / 2;
        RecurringOperations::find(&self.keys, &self.operations, &self.places)
    }
}
