use super::faster::faster;
use super::follow::Follower;
use super::phase::Phase;
use super::recurring::RecurringOperations;
use super::varying::Varying;
use crate::decision::View;
use crate::device::Device;
use crate::plan::Planner;
use crate::trace::{Operation, TensorIndex};
use std::collections::{HashMap, HashSet};

const PHASES_MAX: usize = 16;
/// Divisions of the budget between the plan and the tensors whose use varies that are compared.
const SHARES: u64 = 8;

/// The known phases of a program, and the tensors whose use varies.
#[derive(Debug)]
pub(super) struct Phases {
    device: Device,
    pub(super) all: Vec<Phase>,
    pub(super) varying: Varying,
}

impl Phases {
    pub(super) fn new(device: Device) -> Self {
        Self { device, all: Vec::new(), varying: Varying::default() }
    }

    pub(super) fn is_full(&self) -> bool {
        self.all.len() >= PHASES_MAX
    }

    /// Plans `operations`, between which up to `gap` are chosen by data, as a new phase, and returns its number. Nothing if
    /// they do not fit on the device.
    pub(super) fn add(&mut self, operations: Vec<Operation>, gap: usize, view: &View<'_>) -> Option<usize> {
        let phase = self.plan(operations, gap, view)?;
        if self.is_full() {
            self.all.clear();
        }
        self.all.push(phase);
        Some(self.all.len() - 1)
    }

    /// Adds a phase for the recorded operations that recur among others. Returns its number and the next step.
    pub(super) fn add_recurring(
        &mut self,
        recurring: RecurringOperations,
        recorded: &[Operation],
        view: &View<'_>,
    ) -> Option<(usize, usize)> {
        let RecurringOperations { operations, gap } = recurring;
        let steps: HashMap<u64, usize> =
            operations.iter().enumerate().map(|(step, operation)| (operation.key(), step)).collect();
        let mut next = 0;
        let planned: HashSet<TensorIndex> =
            operations.iter().flat_map(|operation| operation.uses.iter().copied()).collect();
        for operation in recorded {
            let Some(&step) = steps.get(&operation.key()) else {
                self.varying.used(operation, view.sizes(), |tensor| planned.contains(&tensor));
                continue;
            };
            next = (step + 1) % operations.len();
            if step == 0 {
                self.varying.pass();
            }
        }
        Some((self.add(operations, gap.max(1), view)?, next))
    }

    /// The phase with the plan and the share that together take the least time, or with a faster alternative to the plan.
    pub(super) fn plan(&mut self, operations: Vec<Operation>, gap: usize, view: &View<'_>) -> Option<Phase> {
        let (budget, sizes) = (view.budget_bytes(), view.sizes());
        operations.iter().flat_map(|operation| &operation.uses).for_each(|&tensor| self.varying.planned(tensor));
        let plan = |share| Planner::new(self.device.with_budget(budget - share)).plan(sizes, &operations).ok();
        let (share, plan) = if gap == 0 {
            (0, plan(0)?)
        } else {
            let least = self.varying.largest_bytes().min(budget);
            let shares = (0..SHARES).map(|part| least + (budget - least) / SHARES * part);
            let divided = shares.filter_map(|share| {
                let plan = plan(share)?;
                let time = plan.period_ns + self.varying.copy_ns(share, sizes, &self.device) as f64;
                Some((time, share, plan))
            });
            let (_, share, plan) = divided.min_by(|left, right| left.0.total_cmp(&right.0))?;
            (share, plan)
        };
        let mut phase = Phase::new(operations, gap, plan, budget, share);
        if gap == 0 {
            phase.alternative = faster(&phase, sizes, &self.device.with_budget(budget));
        }
        Some(phase)
    }

    /// Follows a phase from `step` on. The tensors whose use varies get its share.
    pub(super) fn follow(&mut self, number: usize, step: usize, view: &View<'_>) -> Follower {
        let phase = &self.all[number];
        if phase.gap > 0 {
            self.varying.share(phase.share, view.sizes());
        }
        Follower::new(number, phase, step, &self.varying, view)
    }

    /// An operation that no phase has arrives.
    pub(super) fn chosen(&mut self, operation: &Operation, view: &View<'_>) {
        let is_planned = |tensor| self.all.iter().any(|phase| phase.uses(tensor));
        self.varying.used(operation, view.sizes(), is_planned);
    }

    /// A phase and its step with the operation `key`: the phase and the step at `position` and those after it first.
    pub(super) fn locate(&self, key: u64, position: Option<(usize, usize)>) -> Option<(usize, usize)> {
        let (first, from) = position.unwrap_or((0, 0));
        (0..self.all.len()).map(|offset| (first + offset) % self.all.len()).find_map(|number| {
            let keys = &self.all[number].keys;
            let from = if number == first { from % keys.len() } else { 0 };
            let step = (0..keys.len()).map(|offset| (from + offset) % keys.len()).find(|&step| keys[step] == key)?;
            Some((number, step))
        })
    }
}
