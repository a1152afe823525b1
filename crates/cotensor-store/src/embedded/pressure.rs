//! Making room: what nobody leases goes, or goes to disk, and an error says who holds the rest.

use super::EmbeddedStore;
use crate::budget::Charge;
use crate::evict::{Group, candidates, charged_bytes};
use crate::home::Home;
use crate::spill::Spilling;
use cotensor_core::{Error, ErrorKind, Result};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often a reservation looks again for memory that is on its way back: over a second in all.
#[cfg(not(target_family = "wasm"))]
pub(crate) const ROUNDS_MAX: u32 = 10_000;
/// On one thread nobody else is on the way.
#[cfg(target_family = "wasm")]
pub(crate) const ROUNDS_MAX: u32 = 2;

/// Lets others run: at first for as short as can be.
pub(crate) fn pause(round: u32) {
    if round < 100 || cfg!(target_family = "wasm") {
        std::thread::yield_now();
    } else {
        std::thread::sleep(Duration::from_micros(100));
    }
}

impl EmbeddedStore {
    /// Takes `bytes` from the budget, evicting what nobody leases if it must, and nothing if that would not do.
    pub(crate) fn charge(&self, bytes: u64) -> Result<Arc<Charge>> {
        for round in 0..ROUNDS_MAX {
            if let Some(charge) = self.budget.take(bytes) {
                return Ok(charge);
            }
            if !self.budget.will_fit(bytes, 0) && !self.evict(bytes)? {
                break;
            }
            if round > 0 {
                // A closed tensor goes with the last who touched it: another thread may be between giving its lease
                // back and letting go.
                pause(round);
            }
        }
        self.budget.take(bytes).ok_or_else(|| self.over_budget(bytes))
    }

    /// Evicts until `bytes` will fit; false, and nothing goes, when all that nobody leases would not make the room.
    ///
    /// # Errors
    /// `OverBudget` when what would have to be spilled cannot be.
    pub(super) fn evict(&self, bytes: u64) -> Result<bool> {
        match &self.spilling {
            None => Ok(self.evict_all(bytes)),
            Some(spilling) => {
                let mut outcome = Ok(false);
                spilling.spill.blocking(&mut || outcome = self.evict_or_spill(spilling, bytes));
                outcome
            }
        }
    }

    /// As [`evict`](Self::evict), where what is worth it is spilled.
    fn evict_or_spill(&self, spilling: &Spilling, bytes: u64) -> Result<bool> {
        let _turn = spilling.turn();
        let groups = candidates(std::mem::take(&mut self.names.survey().records));
        if !self.budget.will_fit(bytes, groups.iter().map(|group| group.bytes).sum()) {
            return Ok(self.budget.will_fit(bytes, 0));
        }
        let mut failed = None;
        for group in groups {
            if self.budget.will_fit(bytes, 0) {
                return Ok(true);
            }
            match group.worth_spilling() {
                None => drop(self.evict_group(&group)),
                // Where one had no room, a smaller one may.
                Some(segment) if failed.as_ref().is_none_or(|error: &Error| error.kind() == ErrorKind::OverBudget) => {
                    failed = self.put_away(spilling, &group, segment).err().or(failed);
                }
                // Others may be dropped still.
                Some(_) => {}
            }
        }
        match failed {
            Some(error) if !self.budget.will_fit(bytes, 0) => Err(self.not_spilled(bytes, &error)),
            _ => Ok(true),
        }
    }

    fn evict_group(&self, group: &Group) -> bool {
        let closed = group.close();
        if closed {
            self.counters.evictions.fetch_add(group.records.len() as u64, Ordering::Relaxed);
            self.counters.evicted_bytes.fetch_add(group.bytes, Ordering::Relaxed);
            self.drop_closed(&group.records);
        }
        closed
    }

    fn evict_all(&self, bytes: u64) -> bool {
        let mut survey = self.names.survey();
        let groups = candidates(std::mem::take(&mut survey.records));
        if !self.budget.will_fit(bytes, groups.iter().map(|group| group.bytes).sum()) {
            return false;
        }
        for group in groups {
            // Others may have given memory back, or taken what was given, since the last look.
            if self.budget.will_fit(bytes, 0) {
                break;
            }
            self.evict_group(&group);
        }
        true
    }

    pub(crate) fn over_budget(&self, bytes: u64) -> Error {
        let survey = self.names.survey();
        let mut by_holder: HashMap<u32, u64> = HashMap::new();
        for record in &survey.records {
            for (holder, _) in record.leases.holders() {
                *by_holder.entry(holder).or_default() += record.layout.size_bytes() as u64;
            }
        }
        let (used, max) = (self.budget.used(), self.budget.max());
        let unlisted = used.saturating_sub(charged_bytes(&survey.records));
        let mut held: Vec<(u64, String)> =
            by_holder.into_iter().map(|(holder, bytes)| (bytes, self.holder_name(holder).to_string())).collect();
        held.sort_unstable_by(|a, b| b.cmp(a));
        let mut held: Vec<String> = held.iter().take(5).map(|(bytes, name)| format!("{name} holds {bytes}")).collect();
        if unlisted > 0 {
            held.push(format!("private and unpublished tensors hold {unlisted}"));
        }
        let held = if held.is_empty() { "nothing is leased".to_owned() } else { held.join(", ") };
        Error::new(
            ErrorKind::OverBudget,
            format!("{bytes} bytes do not fit the budget of {max} bytes, of which {used} are in use ({held})"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Retention, Store, TensorSpec};
    use cotensor_core::DType;

    fn spec(name: &str, bytes: usize) -> TensorSpec {
        TensorSpec {
            retention: Retention::Cached { recompute: Duration::ZERO },
            ..TensorSpec::new(name, DType::U8, &[bytes])
        }
    }

    /// Another thread has given its lease back and not let go of the tensor yet.
    #[test]
    fn memory_on_its_way_back_is_waited_for() {
        let store = EmbeddedStore::builder().max_memory_bytes(100).build();
        let holder = store.holder("m");
        let lease = store.reserve(spec("a", 100), &holder).unwrap().publish().unwrap();
        let touched = Arc::clone(&lease.record);
        drop(lease);
        let (evicted, seen) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // Lets go only once the eviction was seen, and some.
                seen.recv().unwrap();
                std::thread::sleep(Duration::from_millis(30));
                drop(touched);
            });
            scope.spawn(|| {
                while store.stats().total_tensors > 0 {
                    std::thread::yield_now();
                }
                evicted.send(()).unwrap();
            });
            store.reserve(spec("b", 100), &holder).unwrap();
        });
        assert_eq!((store.stats().evictions, store.stats().memory_usage_bytes), (1, 0));
    }
}
