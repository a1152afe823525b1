use super::holds::Holds;
use super::problem::Problem;
use crate::time::Nanos;
use std::collections::VecDeque;

/// How many steps before its use a copy may start at most.
const LEAD_MAX: usize = 256;
/// Cycles until the time of one cycle is taken as steady.
const CYCLES_MAX: usize = 6;

/// Cost of a nanosecond of copying that delays nothing.
const COPYING_WEIGHT: f64 = 1e-6;

/// The copies that follow from holds.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    /// In the order of need, which is the order of the copies.
    pub(super) copies: Vec<Copy>,
    /// The first copy for each step of the cycle, and the end.
    pub(super) first: Vec<usize>,
    /// The copies from the device after each step; empty if the period changes nothing.
    write_backs: Vec<WriteBack>,
    /// Bytes that each step needs with the copies ahead.
    occupied: Vec<u64>,
}

/// Tensors that are dropped after they were changed.
#[derive(Clone, Copy, Debug, Default)]
struct WriteBack {
    copy_ns: Nanos,
    bytes: u64,
}

/// One copy to the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copy {
    /// The use that needs it, within the period.
    pub(super) index: usize,
    /// The step of the cycle that needs it.
    pub(super) step: usize,
    /// The copy may start when the step `lead` steps before `step` has ended. 1 means: just before.
    pub(super) lead: usize,
    copy_ns: Nanos,
}

impl Schedule {
    /// Finds the copies, each as early as the memory beside the holds allows. Which step frees the memory does not
    /// depend on times, so neither does the result.
    pub(super) fn new(problem: &Problem, holds: &Holds) -> Self {
        let steps = problem.steps.len();
        let cycle = holds.periods * steps;
        let (loads, budget) = (holds.loads(), problem.device.budget_bytes());
        let uses = problem.uses.len();
        // The copies of the second cycle count: they compete with those of the first, as in every later cycle. The third shows
        // which copies for the next cycle the second has memory for; this matters only where write-backs need memory, too.
        let write_backs = write_backs(problem, holds);
        let cycles = if write_backs.is_empty() { 2 } else { 3 };
        let mut ahead = vec![0u64; cycles * cycle];
        let (mut copies, mut first) = (Vec::new(), Vec::with_capacity(cycle + 1));
        let mut last_start = 0;
        for at in 0..cycles * cycle {
            let (step, period) = (at % steps, at % cycle / steps);
            let counts = (cycle..2 * cycle).contains(&at);
            if counts {
                first.push(copies.len());
            }
            for index in problem.steps[step].uses.clone() {
                if holds.arrives_held(problem, period * uses + index) {
                    continue;
                }
                let used = &problem.uses[index];
                let earliest = at.saturating_sub(LEAD_MAX.min(problem.uses[used.previous].distance)).max(last_start);
                let mut start = at.saturating_sub(1);
                while start > earliest && loads[start % cycle] + ahead[start] + used.size_bytes <= budget {
                    ahead[start] += used.size_bytes;
                    start -= 1;
                }
                last_start = last_start.max(start);
                if counts {
                    copies.push(Copy { index, step: at - cycle, lead: at - start, copy_ns: used.copy_ns });
                }
            }
        }
        first.push(copies.len());
        let occupied = loads.iter().zip(&ahead[cycle..]).map(|(load, ahead)| load + ahead).collect();
        Self { copies, first, write_backs, occupied }
    }

    /// Time of one period in the long run.
    pub(super) fn period_ns(&self, problem: &Problem, holds: &Holds) -> f64 {
        let mut before = None;
        let mut cycle_ns = 0;
        let mut clock = Clock::new(self, problem);
        for _ in 0..CYCLES_MAX {
            let began = clock.now;
            clock.run(|_, _| {});
            cycle_ns = clock.now - began;
            if before.replace(cycle_ns) == Some(cycle_ns) {
                break;
            }
        }
        cycle_ns as f64 / holds.periods as f64
    }

    /// What planning minimizes: the time of a period in nanoseconds and, between plans of equal time, that of copies.
    pub(super) fn cost(&self, problem: &Problem, holds: &Holds) -> f64 {
        let copying: Nanos = self.copies.iter().map(|copy| copy.copy_ns).sum();
        self.period_ns(problem, holds) + COPYING_WEIGHT * copying as f64 / holds.periods as f64
    }

    /// Expected start of each copy, relative to the start of its cycle, which may be negative.
    pub(super) fn expected(&self, problem: &Problem) -> Vec<i64> {
        let mut clock = Clock::new(self, problem);
        (1..CYCLES_MAX).for_each(|_| clock.run(|_, _| {}));
        let began = clock.now as i64;
        let mut starts = vec![0; self.copies.len()];
        clock.run(|copy, start| starts[copy] = start as i64 - began);
        starts
    }
}

/// The virtual clock of a schedule.
struct Clock<'a> {
    schedule: &'a Schedule,
    problem: &'a Problem,
    now: Nanos,
    copied: Nanos,
    /// The ends of the copies from the device that are under way, and their bytes.
    leaving: VecDeque<(Nanos, u64)>,
    /// When the memory of each step of the last cycle was free again.
    freed: Vec<Nanos>,
}

impl<'a> Clock<'a> {
    fn new(schedule: &'a Schedule, problem: &'a Problem) -> Self {
        Self {
            schedule,
            problem,
            now: 0,
            copied: 0,
            leaving: VecDeque::new(),
            freed: vec![0; schedule.first.len() - 1],
        }
    }

    /// Runs one cycle. `copied` gets each copy and its start.
    fn run(&mut self, mut copied: impl FnMut(usize, Nanos)) {
        let (steps, cycle) = (self.problem.steps.len(), self.freed.len());
        for at in 0..cycle {
            let range = self.schedule.first[at]..self.schedule.first[at + 1];
            let loaded = !range.is_empty();
            for copy in range {
                let Copy { lead, copy_ns, .. } = self.schedule.copies[copy];
                let start = self.copied.max(self.freed[(at + cycle - lead) % cycle]);
                copied(copy, start);
                self.copied = start + copy_ns;
            }
            let start = if loaded { self.now.max(self.copied) } else { self.now };
            let start = self.when_free(at, start);
            self.now = start + self.problem.steps[at % steps].time_ns;
            self.freed[at] = self.now;
            if let Some(&WriteBack { copy_ns: copy_ns @ 1.., bytes }) = self.schedule.write_backs.get(at) {
                let queue = self.leaving.back().map_or(self.now, |&(end, _)| end.max(self.now));
                self.freed[at] = queue + copy_ns;
                self.leaving.push_back((self.freed[at], bytes));
            }
        }
    }

    /// When the memory for a step is free, at the earliest at `start`.
    fn when_free(&mut self, at: usize, mut start: Nanos) -> Nanos {
        let mut used = self.schedule.occupied[at] + self.leaving.iter().map(|&(_, bytes)| bytes).sum::<u64>();
        while let Some(&(end, bytes)) = self.leaving.front() {
            if end > start && used <= self.problem.device.budget_bytes() {
                break;
            }
            start = start.max(end);
            used -= bytes;
            self.leaving.pop_front();
        }
        start
    }
}

/// The copies from the device after each step of the cycle.
fn write_backs(problem: &Problem, holds: &Holds) -> Vec<WriteBack> {
    if !problem.uses.iter().any(|used| used.writes) {
        return Vec::new();
    }
    let (steps, uses) = (problem.steps.len(), problem.uses.len());
    let mut changed = vec![false; problem.tensors];
    let mut write_backs = vec![WriteBack::default(); holds.periods * steps];
    for round in 0..2 {
        for index in 0..holds.uses() {
            let used = &problem.uses[index % uses];
            changed[used.tensor] |= used.writes;
            if changed[used.tensor] && !holds.is_held(index) {
                changed[used.tensor] = false;
                if round == 1 {
                    let write_back = &mut write_backs[index / uses * steps + used.step];
                    write_back.copy_ns += used.copy_ns;
                    write_back.bytes += used.size_bytes;
                }
            }
        }
    }
    write_backs
}
