//! Claims of this process, by the tickets that the daemon knows them by.

use super::{Live, lock};
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_store::Key;
use std::collections::HashMap;
use std::sync::Mutex;

#[derive(Default)]
pub(super) struct Tickets(Mutex<State>);

#[derive(Default)]
struct State {
    generation: u64,
    /// None for a claim that went to somebody else when the daemon was replaced.
    numbers: HashMap<Key, Option<u64>>,
}

impl Tickets {
    /// The daemon gave this claim to this process.
    ///
    /// # Errors
    /// `Io` when it was replaced meanwhile.
    pub(super) fn add(&self, live: &Live, key: Key, number: u64) -> Result<()> {
        let mut state = lock(&self.0);
        // The first connection's number is zero, like the table's.
        if state.generation != live.generation {
            return Err(live.outlived());
        }
        state.numbers.insert(key, Some(number));
        Ok(())
    }

    /// The ticket for results of `key`; none when others can claim it meanwhile.
    ///
    /// # Errors
    /// `Conflict` for a claim that is over.
    pub(super) fn number(&self, key: Option<Key>) -> Result<Option<u64>> {
        let Some(key) = key else { return Ok(None) };
        let missing = || Error::new(ErrorKind::Conflict, "this claim is not this process's any more");
        lock(&self.0).numbers.get(&key).copied().ok_or_else(missing)
    }

    pub(super) fn take(&self, key: Key) -> Option<u64> {
        lock(&self.0).numbers.remove(&key).flatten()
    }

    /// What to take up again in the session of `generation`.
    pub(super) fn gather(&self, generation: u64) -> Vec<Key> {
        let mut state = lock(&self.0);
        state.generation = generation;
        state.numbers.keys().copied().collect()
    }

    /// The new session's tickets for `keys`; returns those whose claims were given up meanwhile.
    pub(super) fn renew(&self, keys: &[Key], numbers: &[Option<u64>]) -> Vec<u64> {
        let mut state = lock(&self.0);
        let mut given_up = Vec::new();
        for (index, key) in keys.iter().enumerate() {
            let renewed = numbers.get(index).copied().flatten();
            match state.numbers.get_mut(key) {
                Some(number) => *number = renewed,
                None => given_up.extend(renewed),
            }
        }
        given_up
    }
}
