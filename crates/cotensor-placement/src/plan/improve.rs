use super::holds::Holds;
use super::problem::Problem;
use super::schedule::Schedule;
use crate::random::Random;

const SEED: u64 = 1;
/// Holds that may be added after one was removed.
const ADDED_MAX: usize = 3;
/// A step to a slower plan is taken if the plan stays below this factor of the best one, so that the search can leave a
/// local optimum.
const SLACK: f64 = 1.02;

/// A plan whose cost is so little above the bound is not improved.
const REST: f64 = 1e-4;

/// Changes `holds` at random while their cost does not rise much, and returns the cheapest holds found with their cost. Schedules about `work` uses, which bounds the time; the result depends on nothing else.
pub(super) fn improved(problem: &Problem, holds: Holds, cost: f64, bound_ns: f64, work: usize) -> (Holds, f64) {
    let mut random = Random::new(SEED);
    let budget = problem.device.budget_bytes();
    let uses = holds.uses();
    let (mut best, mut best_cost) = (holds.clone(), cost);
    let mut current = holds;
    let per_try = 4 * (uses + problem.steps.len() * current.periods) + 100;
    for _ in 0..if uses == 0 { 0 } else { work / per_try } {
        if best_cost <= bound_ns * (1.0 + REST) {
            break;
        }
        let mut changed = current.clone();
        let first = random.below(uses);
        changed.release(problem, first);
        for _ in 0..=random.below(ADDED_MAX) {
            let start = random.below(uses);
            // The next gap that fits, from a random one.
            let other = |offset| (start + offset) % uses;
            (0..uses).map(other).any(|index| index != first && changed.try_hold(problem, index, budget));
        }
        let cost = Schedule::new(problem, &changed).cost(problem, &changed);
        if cost < best_cost {
            (best, best_cost) = (changed.clone(), cost);
        }
        if cost <= best_cost * SLACK {
            current = changed;
        }
    }
    (best, best_cost)
}
