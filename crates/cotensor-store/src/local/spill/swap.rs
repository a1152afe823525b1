//! Restoring while spill storage is full: a spilled segment and one in memory change places.

use crate::local::LocalStore;
use crate::spill::{SpilledSegment, SpilledSet};
use crate::{Holder, Lease};
use cotensor_core::{Error, ErrorKind, Result};
use std::sync::Arc;

impl LocalStore {
    /// Restores a set although `refused` denied its memory: removes its segment from spill storage first, then spills
    /// unleased tensors there. Meanwhile the budget is exceeded by this one segment.
    ///
    /// # Errors
    /// `refused` when all unleased tensors would not make enough room; the error of spilling the others; those of
    /// [`SpilledSegment::restore`].
    pub(super) fn swap_in(
        &self,
        set: &Arc<SpilledSet>,
        segment: &mut Option<Arc<dyn SpilledSegment>>,
        holder: &Holder,
        refused: Error,
    ) -> Result<Vec<Lease>> {
        let budget = self.devices.budget(set.device())?;
        let mut outcome = Err(refused);
        let mut is_exceeded = false;
        self.with_unleased(&mut |candidates| {
            let candidates: Vec<_> = candidates.into_iter().filter(|candidate| candidate.is_of(budget)).collect();
            let unleased = candidates.iter().map(|candidate| candidate.bytes).sum();
            if !budget.will_fit(set.bytes, unleased) {
                return;
            }
            let Some(spilled) = segment.as_ref() else { return };
            let charge = budget.take_unchecked(set.bytes);
            let restored = spilled.restore().and_then(|segment| self.move_to_device(set, segment));
            outcome = restored.and_then(|restored| self.list_restored(set, &restored, &charge, holder));
            if outcome.is_err() {
                return;
            }
            // Frees its space on the storage.
            *segment = None;
            // Until `set` is dropped, its metadata counts twice: as spilled, and in memory.
            let twice = if budget.device().is_host() { self.spilled_metadata(&set.tensors) } else { 0 };
            let shed = self.shed(candidates, &mut || budget.will_fit(0, twice), true);
            if !matches!(shed, Ok(true)) {
                is_exceeded = true;
                let why =
                    shed.err().unwrap_or_else(|| Error::new(ErrorKind::OverBudget, "no other tensor can be spilled"));
                outcome = Err(self.not_spilled(budget, set.bytes, &why));
            }
        });
        if is_exceeded {
            // The restored tensors are spilled again. The error holds no lease of them.
            self.with_unleased(&mut |candidates| {
                let candidates = candidates.into_iter().filter(|candidate| candidate.is_of(budget)).collect();
                let _ = self.shed(candidates, &mut || budget.will_fit(0, 0), true);
            });
        }
        outcome
    }
}
