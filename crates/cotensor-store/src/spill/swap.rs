//! Reading back what was spilled while nothing more can be spilled, because the disk is full: the two change places.

use crate::spill::Away;
use crate::{EmbeddedStore, Holder, Lease, SpilledSegment};
use cotensor_core::{Error, ErrorKind, Result};
use std::sync::Arc;

impl EmbeddedStore {
    /// Brings back what is away although `refused` kept its memory from the budget. Its place on the disk is given up first, and
    /// what nobody leases goes there. Until it is there, the budget is exceeded by this one segment.
    ///
    /// # Errors
    /// `refused` when all that nobody leases would not make the room; what kept the other from being spilled; those of
    /// [`SpilledSegment::restore`].
    pub(crate) fn swap_in(
        &self,
        away: &Arc<Away>,
        place: &mut Option<Arc<dyn SpilledSegment>>,
        holder: &Holder,
        refused: Error,
    ) -> Result<Vec<Lease>> {
        let budget = self.devices.budget(away.device())?;
        let mut outcome = Err(refused);
        let mut exceeded = false;
        self.with_unleased(&mut |groups| {
            let groups: Vec<_> = groups.into_iter().filter(|group| group.is_of(budget)).collect();
            let unleased = groups.iter().map(|group| group.bytes).sum();
            if !budget.will_fit(away.bytes, unleased) {
                return;
            }
            let Some(spilled) = place.as_ref() else { return };
            let charge = budget.take_unchecked(away.bytes);
            let segment = spilled.restore().and_then(|segment| self.on_its_device(away, segment));
            outcome = segment.and_then(|segment| self.list_again(away, &segment, &charge, holder));
            if outcome.is_err() {
                return;
            }
            // Its file goes with it.
            *place = None;
            // It is known twice until `away` goes: in its place on the disk, and in memory.
            let known = if budget.device().is_host() { self.metadata_of_all(&away.tensors) } else { 0 };
            let made = self.shed(groups, &mut || budget.will_fit(0, known), true);
            if !matches!(made, Ok(true)) {
                exceeded = true;
                let why = made.err().unwrap_or_else(|| Error::new(ErrorKind::OverBudget, "nothing else could go"));
                outcome = Err(self.not_spilled(budget, away.bytes, &why));
            }
        });
        if exceeded {
            // What came back goes where it was. Nobody leases it any more: an error holds no lease.
            self.with_unleased(&mut |groups| {
                let groups = groups.into_iter().filter(|group| group.is_of(budget)).collect();
                drop(self.shed(groups, &mut || budget.will_fit(0, 0), true));
            });
        }
        outcome
    }
}
