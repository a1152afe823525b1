//! Making room: evicts or spills unleased tensors.

use crate::TensorSpec;
use crate::budget::{Budget, Charge, TensorCharge};
use crate::eviction::{Candidate, ROUNDS_MAX, Want, candidates, order_for, over_budget, pause};
use crate::local::LocalStore;
use cotensor_core::{Device, Error, ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl LocalStore {
    /// Takes what a segment of `bytes` takes from the budget of `device`. Evicts unleased tensors if that makes enough room, else
    /// none.
    pub(crate) fn charge(&self, device: Device, bytes: u64) -> Result<Arc<Charge>> {
        let (budget, bytes) = (self.devices.budget(device)?, device.allocated_bytes(bytes));
        self.take_evicting(budget, bytes, Want::Memory, || budget.take(bytes))
    }

    /// As [`charge`](Self::charge) for a spilled segment.
    pub(crate) fn restored_charge(&self, device: Device, bytes: u64) -> Result<Arc<Charge>> {
        let budget = self.devices.budget(device)?;
        self.take_evicting(budget, bytes, Want::Restored, || budget.take(bytes))
    }

    /// Takes the metadata of a tensor of `segment`.
    pub(crate) fn tensor_charge(&self, segment: &Arc<Charge>, spec: &TensorSpec) -> Result<TensorCharge> {
        self.metadata_charge(segment, self.metadata_of(spec))
    }

    /// Takes `bytes` for the metadata of a tensor of `segment`.
    pub(crate) fn metadata_charge(&self, segment: &Arc<Charge>, bytes: u64) -> Result<TensorCharge> {
        let budget = self.devices.host();
        self.take_evicting(budget, bytes, Want::Metadata, || budget.take_metadata(segment, bytes))
    }

    /// The metadata of a tensor, in bytes.
    pub(crate) fn metadata_of(&self, spec: &TensorSpec) -> u64 {
        match self.devices.host().metadata_of(spec.text_bytes(), spec.shape.len()) {
            0 => 0,
            own => own + spec.members.as_ref().map_or(0, |members| members.metadata_bytes()),
        }
    }

    fn take_evicting<T>(
        &self,
        budget: &Arc<Budget>,
        bytes: u64,
        want: Want,
        take: impl Fn() -> Option<T>,
    ) -> Result<T> {
        for round in 0..ROUNDS_MAX {
            if let Some(charge) = take() {
                return Ok(charge);
            }
            if !budget.will_fit(bytes, 0) {
                let evicted = self.evict(budget, bytes, want);
                // Readers of every version lose queued versions before a program gets no memory, also when spilling fails.
                if !matches!(evicted, Ok(true)) && !self.queues.give_up() {
                    evicted?;
                    break;
                }
            }
            if round > 0 {
                // A closed record is freed with its last reference. Another thread may have released its lease and
                // still hold that reference.
                pause(round);
            }
        }
        take().ok_or_else(|| self.over_budget(budget, bytes))
    }

    /// Evicts until `bytes` will fit `budget`. False, and nothing is evicted, when all unleased tensors would not make
    /// enough room.
    ///
    /// # Errors
    /// `OverBudget` when spilling fails.
    pub(crate) fn evict(&self, budget: &Arc<Budget>, bytes: u64, want: Want) -> Result<bool> {
        let mut outcome = Ok(false);
        self.with_unleased(&mut |mut candidates| {
            order_for(&mut candidates, budget, want);
            let goal = want.goal(budget, bytes);
            // Other threads take and return memory at the same time.
            let fits = || budget.will_fit(bytes, 0);
            let mut enough = || budget.will_fit(goal, 0);
            let freed = candidates.iter().map(|candidate| self.freed_by(candidate, budget)).sum();
            outcome = if budget.will_fit(bytes, freed) {
                match self.shed(candidates, &mut enough, !matches!(want, Want::Restored)) {
                    Err(error) if !fits() => Err(self.not_spilled(budget, bytes, &error)),
                    _ => Ok(true),
                }
            } else {
                Ok(fits())
            };
        });
        outcome
    }

    /// The bytes that evicting `candidate` returns to `budget`. A spilled tensor keeps its metadata.
    fn freed_by(&self, candidate: &Candidate, budget: &Arc<Budget>) -> u64 {
        let is_spilled = self.spill.is_some() && self.worth_spilling(candidate).is_some();
        let memory = if candidate.is_of(budget) { candidate.bytes } else { 0 };
        memory + if is_spilled || !budget.device().is_host() { 0 } else { candidate.metadata }
    }

    /// Evicts or spills unleased segments one by one, in the order of eviction, until `enough` returns true. Without others,
    /// queues of versions give theirs up. Returns whether there is enough.
    ///
    /// # Errors
    /// The first error of spilling, when there is not enough without that segment.
    pub fn shed_until(&self, enough: &mut dyn FnMut() -> bool) -> Result<bool> {
        loop {
            let mut outcome = Ok(false);
            self.with_unleased(&mut |candidates| outcome = self.shed(candidates, enough, true));
            if matches!(outcome, Ok(true)) || !self.queues.give_up() {
                return outcome;
            }
        }
    }

    /// Calls `work` with the unleased candidates in the order of eviction, while no other thread makes room.
    pub(crate) fn with_unleased(&self, work: &mut dyn FnMut(Vec<Candidate>)) {
        self.with_all_unleased(&mut |mut candidates| {
            // A part of a segment cannot be spilled, only lost.
            candidates.retain(|candidate| self.spill.is_none() || !candidate.is_partial);
            work(candidates);
        });
    }

    /// As [`with_unleased`](Self::with_unleased), with the parts of segments that a store with spill storage keeps.
    pub(crate) fn with_all_unleased(&self, work: &mut dyn FnMut(Vec<Candidate>)) {
        let Some(state) = &self.spill else {
            let mut survey = self.names.unleased();
            let candidates = candidates(std::mem::take(&mut survey.records));
            return work(candidates);
        };
        state.storage.blocking(&mut || {
            let _guard = state.begin();
            let records = std::mem::take(&mut self.names.unleased().records);
            work(candidates(records));
        });
    }

    /// Evicts or spills `candidates` in their order until `enough` returns true. Where spilling fails and `may_evict`
    /// is true, candidates with a recompute time are evicted; the others always stay.
    ///
    /// # Errors
    /// The first error of spilling, when there is not enough without that candidate.
    pub(crate) fn shed(
        &self,
        candidates: Vec<Candidate>,
        enough: &mut dyn FnMut() -> bool,
        may_evict: bool,
    ) -> Result<bool> {
        let mut failed: Option<Error> = None;
        let mut unspilled = Vec::new();
        for candidate in candidates {
            if enough() {
                return Ok(true);
            }
            match (&self.spill, self.worth_spilling(&candidate)) {
                (Some(state), Some(segment)) => {
                    // After a lack of room a smaller segment may fit. After another error no segment is tried.
                    if failed.as_ref().is_none_or(|error| error.kind() == ErrorKind::OverBudget) {
                        match self.spill_candidate(state, &candidate, segment) {
                            Ok(_) => continue,
                            Err(error) => failed = Some(error),
                        }
                    }
                    unspilled.push(candidate);
                }
                _ => self.evict_candidate(&candidate),
            }
        }
        // A full disk does not stop the store: tensors with a recompute time are evicted.
        for candidate in unspilled.iter().filter(|candidate| may_evict && !candidate.recompute.is_zero()) {
            if enough() {
                return Ok(true);
            }
            self.evict_candidate(candidate);
        }
        match (enough(), failed) {
            (false, Some(error)) => Err(error),
            (done, _) => Ok(done),
        }
    }

    /// The error of a reservation that does not fit.
    pub(crate) fn over_budget(&self, budget: &Arc<Budget>, bytes: u64) -> Error {
        let uses = self.last_uses.of(budget, &self.names, &*self.clock);
        let retained = self.observer.as_ref().and_then(|observer| observer.retained_memory());
        over_budget(budget, bytes, &uses, retained)
    }

    /// As [`over_budget`](Self::over_budget), with the error of spilling.
    pub(crate) fn not_spilled(&self, budget: &Arc<Budget>, bytes: u64, error: &Error) -> Error {
        let over = self.over_budget(budget, bytes);
        Error::new(ErrorKind::OverBudget, format!("{}; spilling failed: {error}", over.message()))
    }

    fn evict_candidate(&self, candidate: &Candidate) {
        if candidate.close() {
            self.counters.evictions.fetch_add(candidate.records.len() as u64, Ordering::Relaxed);
            self.counters.evicted_bytes.fetch_add(candidate.bytes, Ordering::Relaxed);
            self.free_closed(&candidate.records);
        }
    }
}

// The test needs threads.
#[cfg(all(test, not(target_family = "wasm")))]
mod tests {
    use super::*;
    use crate::{Retention, StoreReports, TensorStore};
    use cotensor_core::DType;
    use std::time::Duration;

    fn spec(name: &str, bytes: usize) -> TensorSpec {
        TensorSpec {
            retention: Retention::Cached { recompute: Duration::ZERO },
            ..TensorSpec::new(name, DType::U8, &[bytes])
        }
    }

    /// Another thread has released its lease and still holds a reference to the record.
    #[test]
    fn reservation_waits_for_leaving_memory() {
        let store = LocalStore::builder().max_memory_bytes(100).build();
        let holder = store.holder("m");
        let lease = store.reserve(spec("a", 100), &holder).unwrap().publish().unwrap();
        let touched = Arc::clone(&lease.record);
        drop(lease);
        let (evicted, seen) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // Keeps the reference until the eviction was seen.
                seen.recv().unwrap();
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
