use crate::time::Nanos;
use std::collections::BTreeSet;

/// What goes wrong during a simulation.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Other programs that take memory of the device, in the order of time.
    pub thefts: Vec<Theft>,
    /// Copies to the device that fail at first for lack of memory, counted from 0 over all attempts.
    pub failing_copies: BTreeSet<u64>,
}

/// From a time on, another program uses this much of the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Theft {
    /// When it begins.
    pub at_ns: Nanos,
    /// Memory that other programs then use, in bytes, instead of what they used before.
    pub bytes: u64,
}
