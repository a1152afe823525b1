//! The claims of this process and their tickets at the daemon.

use super::session::Session;
use cotensor_core::sync::lock;
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_store::Key;
use std::collections::HashMap;
use std::sync::Mutex;

#[derive(Default)]
pub(super) struct Tickets(Mutex<TicketTable>);

#[derive(Default)]
struct TicketTable {
    generation: u64,
    /// None for a claim that another session took when the daemon was replaced.
    numbers: HashMap<Key, Option<u64>>,
}

impl Tickets {
    /// Adds a claim of this process.
    ///
    /// # Errors
    /// `Io` when the daemon was replaced meanwhile.
    pub(super) fn add(&self, session: &Session, key: Key, number: u64) -> Result<()> {
        let mut state = lock(&self.0);
        // The first session's generation is zero, like the table's.
        if state.generation != session.generation {
            return Err(session.replaced());
        }
        state.numbers.insert(key, Some(number));
        Ok(())
    }

    /// The ticket for results of `key`; none when another session has the claim now.
    ///
    /// # Errors
    /// `Conflict` for a claim that is finished or abandoned.
    pub(super) fn number(&self, key: Option<Key>) -> Result<Option<u64>> {
        let Some(key) = key else { return Ok(None) };
        let missing = || {
            Error::new(
                ErrorKind::Conflict,
                "this process has no claim on this computation: it is finished or abandoned",
            )
        };
        lock(&self.0).numbers.get(&key).copied().ok_or_else(missing)
    }

    /// Removes the claim of `key`. Returns its ticket with the generation of the session that it belongs to.
    pub(super) fn take(&self, key: Key) -> Option<(u64, u64)> {
        let mut state = lock(&self.0);
        let number = state.numbers.remove(&key).flatten()?;
        Some((state.generation, number))
    }

    /// Starts the session of `generation`, and returns the claims to renew in it. The former tickets are void.
    pub(super) fn begin(&self, generation: u64) -> Vec<Key> {
        let mut state = lock(&self.0);
        state.generation = generation;
        state.numbers.values_mut().for_each(|number| *number = None);
        state.numbers.keys().copied().collect()
    }

    /// Takes the new session's tickets for `keys`. Returns the tickets of claims that ended meanwhile.
    pub(super) fn renew(&self, keys: &[Key], numbers: &[Option<u64>]) -> Vec<u64> {
        let mut state = lock(&self.0);
        let mut ended = Vec::new();
        for (index, key) in keys.iter().enumerate() {
            let renewed = numbers.get(index).copied().flatten();
            match state.numbers.get_mut(key) {
                Some(number) => *number = renewed,
                None => ended.extend(renewed),
            }
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_core::ContentHash;

    #[test]
    fn ticket_belongs_to_one_session() {
        let (tickets, [first, second]) = (Tickets::default(), [1, 2].map(|byte| Key(ContentHash::of(&[byte]))));
        lock(&tickets.0).numbers.extend([(first, Some(1)), (second, Some(2))]);
        assert_eq!(tickets.take(first), Some((0, 1)));
        let claimed = tickets.begin(5);
        assert_eq!(claimed, [second]);
        assert_eq!(tickets.take(second), None, "the former session's number is another claim's in the next one");
        assert_eq!(tickets.renew(&claimed, &[Some(1)]), [1], "to be abandoned");
        lock(&tickets.0).numbers.insert(first, None);
        assert!(tickets.renew(&[first], &[Some(3)]).is_empty());
        assert_eq!(tickets.take(first), Some((5, 3)));
    }
}
