use super::holds::Holds;
use super::problem::Problem;
use std::collections::HashMap;

/// Steps of the search for a cycle, which bound its time.
const WORK_MAX: usize = 600_000;

/// Holds that are decided in the order of the operations: a tensor is held whenever it fits, or when the hold that ends
/// last can give way to it. The held tensors change from period to period until the pattern repeats; this uses memory
/// that whole tensors leave over. The first holds start evenly spread over a period, and so do all later ones.
///
/// Returns nothing if the pattern does not repeat within a bounded search.
pub(super) fn rotating(problem: &Problem, reserve_bytes: u64) -> Option<Holds> {
    let (steps, uses) = (problem.steps.len(), problem.uses.len());
    let limit = problem.device.budget_bytes().saturating_sub(reserve_bytes);
    let largest_need = problem.steps.iter().map(|step| step.need_bytes).max()?;
    let capacity = limit.saturating_sub(largest_need) as f64;
    let mut walk = Walk { problem, limit, occupied: vec![0; 2 * steps], active: Vec::new(), held: Vec::new() };
    let mut seen = HashMap::new();
    let mut started = 0.0;
    for period in 0..WORK_MAX / (uses * steps).max(1) {
        if let Some(earlier) = seen.insert(walk.state(), period) {
            return Some(walk.holds_since(earlier, period));
        }
        for (index, used) in problem.uses.iter().enumerate() {
            let size = used.size_bytes as f64;
            let early = period == 0 && started + size / 2.0 > capacity * (used.step + 1) as f64 / steps as f64;
            let held = !early && walk.try_hold(index);
            walk.held.push(held);
            started += if held { size } else { 0.0 };
        }
        walk.end_period();
    }
    None
}

/// A hold that has not ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Active {
    /// Step at which the hold ends, relative to the start of the current period.
    end: usize,
    /// The use within its period, and its position in [`Walk::held`].
    index: usize,
    position: usize,
}

struct Walk<'a> {
    problem: &'a Problem,
    limit: u64,
    /// Bytes of holds at the steps of this period and the next.
    occupied: Vec<u64>,
    active: Vec<Active>,
    /// One flag for each use since the start.
    held: Vec<bool>,
}

impl Walk<'_> {
    /// Holds the tensor after use `index` of this period if it fits, in place of the hold that ends last if need be.
    fn try_hold(&mut self, index: usize) -> bool {
        let used = self.problem.uses[index];
        let (from, end) = (used.step + 1, used.step + used.distance);
        self.active.retain(|hold| hold.end > used.step);
        if !self.fits(from, end, used.size_bytes) {
            let last = self.active.iter().enumerate().max_by_key(|(_, hold)| (hold.end, hold.index));
            let Some((at, &hold)) = last.filter(|(_, hold)| hold.end > end) else { return false };
            let freed = self.problem.uses[hold.index].size_bytes;
            self.change(from, hold.end, freed, false);
            if !self.fits(from, end, used.size_bytes) {
                self.change(from, hold.end, freed, true);
                return false;
            }
            self.active.swap_remove(at);
            self.held[hold.position] = false;
        }
        self.change(from, end, used.size_bytes, true);
        self.active.push(Active { end, index, position: self.held.len() });
        true
    }

    fn fits(&self, from: usize, end: usize, size: u64) -> bool {
        let need = |step: usize| self.problem.steps[step % self.problem.steps.len()].need_bytes;
        (from..end).all(|step| need(step) + self.occupied[step] + size <= self.limit)
    }

    fn change(&mut self, from: usize, end: usize, size: u64, add: bool) {
        for bytes in &mut self.occupied[from..end] {
            *bytes = if add { *bytes + size } else { *bytes - size };
        }
    }

    fn end_period(&mut self) {
        let steps = self.problem.steps.len();
        self.occupied.drain(..steps);
        self.occupied.resize(2 * steps, 0);
        self.active.retain(|hold| hold.end >= steps);
        self.active.iter_mut().for_each(|hold| hold.end -= steps);
    }

    /// All that decides what follows.
    fn state(&self) -> Vec<(usize, usize)> {
        let mut state: Vec<_> = self.active.iter().map(|hold| (hold.end, hold.index)).collect();
        state.sort_unstable();
        state
    }

    /// The holds of the periods `from..to`, which repeat. A hold of the last period that gives way later does so in every
    /// cycle, so the flags of the end are those at the start of the cycle.
    fn holds_since(&self, from: usize, to: usize) -> Holds {
        let uses = self.problem.uses.len();
        let mut holds = Holds::none(self.problem, to - from);
        for (index, &held) in self.held[from * uses..to * uses].iter().enumerate() {
            if held {
                holds.try_hold(self.problem, index, self.problem.device.budget_bytes());
            }
        }
        holds
    }
}
