use super::alternative::Alternative;
use super::phase::Phase;
use super::varying::Varying;
use crate::decision::{Expected, Move, Place, View};
use crate::time::Nanos;
use crate::trace::{Operation, TensorIndex};

/// A position in a phase, and the moves that its plan, or its alternative, wants there.
#[derive(Debug)]
pub(super) struct Follower {
    /// The phase among those that are known.
    pub(super) phase: usize,
    /// The step that arrives next or is under way, counted from the start of the first cycle.
    pub(super) step: usize,
    /// The next prefetch, counted likewise.
    prefetch: usize,
    leaving: Vec<TensorIndex>,
    /// Tensors on the device that the plan does not expect there; the last leaves first.
    strays: Vec<TensorIndex>,
    alternative: Option<Alternative>,
}

impl Follower {
    /// Follows `phase`, the one with this number, from `step` of its cycle.
    pub(super) fn new(number: usize, phase: &Phase, step: usize, varying: &Varying, view: &View<'_>) -> Self {
        let mut held = vec![false; view.sizes().len()];
        phase.held_at(step).into_iter().for_each(|tensor| held[tensor] = true);
        let is_stray = |&tensor: &TensorIndex| !(held[tensor] || phase.gap > 0 && varying.contains(tensor));
        let mut strays: Vec<TensorIndex> = view.on_device().filter(is_stray).collect();
        strays.sort_by_key(|&tensor| phase.distance(tensor, step));
        // An alternative starts with an empty device.
        let alternative = phase.alternative.clone();
        let leaving = if alternative.is_some() { view.on_device().collect() } else { Vec::new() };
        Self { phase: number, step, prefetch: phase.first_prefetch(step), leaving, strays, alternative }
    }

    /// An operation arrives, `on_plan` if it is the one of the current step.
    pub(super) fn arrive(&mut self, phase: &Phase, operation: &Operation, on_plan: bool, view: &View<'_>) -> Place {
        match &mut self.alternative {
            Some(alternative) => alternative.strategy().arrive(operation, view),
            None if on_plan && phase.is_on_cpu(self.step) => Place::Cpu,
            None => Place::Device,
        }
    }

    /// The step within the cycle.
    pub(super) fn step_of_cycle(&self, phase: &Phase) -> usize {
        self.step % phase.plan.steps()
    }

    /// An operation has ended, `on_plan` if it was the one of the current step.
    pub(super) fn finished(
        &mut self,
        phase: &Phase,
        operation: &Operation,
        elapsed_ns: Nanos,
        on_plan: bool,
        view: &View<'_>,
    ) {
        if let Some(alternative) = &mut self.alternative {
            alternative.strategy().finished(operation, elapsed_ns, view);
        } else if on_plan {
            // The last of `leaving` leaves first.
            self.leaving.extend(phase.evicted_after(self.step_of_cycle(phase)).rev());
        }
        self.step += usize::from(on_plan);
    }

    pub(super) fn next_move(&mut self, phase: &Phase, varying: &Varying, view: &View<'_>) -> Option<Move> {
        while let Some(tensor) = self.leaving.pop() {
            if view.is_on_device(tensor) && !view.is_needed_now(tensor) {
                return Some(Move::Evict(tensor));
            }
        }
        if let Some(alternative) = &mut self.alternative {
            // After a change of the budget, it may not know the tensors that are in the way.
            let wanted = alternative.strategy().next_move(view);
            if wanted.is_some() || view.short_bytes() == 0 {
                return wanted;
            }
        }
        if view.short_bytes() > 0 {
            return self.victim(phase, varying, view).map(Move::Evict);
        }
        if view.is_copying() {
            return None;
        }
        if let Some(missing) = view.missing() {
            return view.can_fetch(missing).then_some(Move::Fetch(missing));
        }
        self.planned(phase, view)
    }

    /// The next copy of the plan, if there is memory for it.
    fn planned(&mut self, phase: &Phase, view: &View<'_>) -> Option<Move> {
        let prefetches = &phase.plan.prefetches;
        // Each turn skips a copy that is not needed, at most all of them.
        for _ in 0..prefetches.len() {
            let copy = prefetches[self.prefetch % prefetches.len()];
            let needed_by = self.prefetch / prefetches.len() * phase.plan.steps() + copy.step;
            let passed = needed_by < self.step;
            if !passed && needed_by - copy.lead.min(needed_by) >= self.step {
                return None;
            }
            if !passed && view.is_leaving(copy.tensor) {
                return None;
            }
            if !passed && view.is_on_host(copy.tensor) {
                if view.can_fetch(copy.tensor) {
                    self.prefetch += 1;
                    return Some(Move::Fetch(copy.tensor));
                }
                return self.stray(view).map(Move::Evict);
            }
            self.prefetch += 1;
        }
        None
    }

    /// The tensor that should leave if memory is short: one that the plan does not expect, one that varies if those have
    /// more than their share, else the one that is used last.
    fn victim(&mut self, phase: &Phase, varying: &Varying, view: &View<'_>) -> Option<TensorIndex> {
        if let Some(stray) = self.stray(view) {
            return Some(stray);
        }
        let varies = |tensor: TensorIndex| phase.gap > 0 && varying.contains(tensor);
        let of_share = || varying.victim(view).filter(|&tensor| varies(tensor));
        let over = if phase.gap > 0 && varying.is_over(view) { of_share() } else { None };
        over.or_else(|| {
            let free = view.on_device().filter(|&tensor| !view.is_needed_now(tensor) && !varies(tensor));
            free.max_by_key(|&tensor| (phase.distance(tensor, self.step), tensor))
        })
        .or_else(of_share)
    }

    /// The device had no memory: something leaves before the next attempt.
    pub(super) fn out_of_memory(&mut self, phase: &Phase, varying: &Varying, view: &View<'_>) {
        if let Some(alternative) = &mut self.alternative {
            alternative.strategy().out_of_memory(view);
        }
        let victim = self.victim(phase, varying, view);
        self.leaving.extend(victim);
    }

    fn stray(&mut self, view: &View<'_>) -> Option<TensorIndex> {
        while let Some(tensor) = self.strays.pop() {
            if view.is_on_device(tensor) && !view.is_needed_now(tensor) {
                return Some(tensor);
            }
        }
        None
    }

    /// What is followed instead of the plan.
    pub(super) fn alternative(&self) -> Option<&Alternative> {
        self.alternative.as_ref()
    }

    /// The next `count` operations. The moves of an alternative are not known.
    pub(super) fn forecast(&self, phase: &Phase, count: usize) -> Vec<Expected> {
        let expected = |step: usize| {
            let step = step % phase.plan.steps();
            let operation = &phase.operations[step % phase.operations.len()];
            let copies = &phase.plan.prefetches[phase.first_prefetch(step)..phase.first_prefetch(step + 1)];
            let is_planned = self.alternative.is_none();
            let on_cpu = match &self.alternative {
                None => phase.is_on_cpu(step),
                Some(alternative) => matches!(alternative, Alternative::AllCpu(_)),
            };
            Expected {
                name: operation.name.clone(),
                uses: operation.uses.clone(),
                place: if on_cpu { Place::Cpu } else { Place::Device },
                copied: copies.iter().map(|copy| copy.tensor).filter(|_| is_planned).collect(),
                evicted: phase.evicted_after(step).filter(|_| is_planned).collect(),
            }
        };
        (self.step..self.step + count).map(expected).collect()
    }
}
