use super::holds::Holds;
use super::problem::{Problem, Use};
use std::cmp::Reverse;

/// Gaps are of one class if their values differ by less than this factor.
const CLASS_FACTOR: f64 = 1.05;
/// A tensor is large if it is as many times as large as the memory that stays free.
const LARGE_FACTOR: u64 = 3;

/// Holds of one period, best value first: the copy time saved, for each byte and step that the hold occupies. Gaps of
/// equal value are chosen so that the remaining copies are spread evenly over the compute time. `reserve_bytes` stay free
/// for copies ahead of their use.
pub(super) fn even(problem: &Problem, reserve_bytes: u64) -> Holds {
    evenly(problem, Holds::none(problem, 1), reserve_bytes)
}

/// As [`even`], but first holds the tensors that are much larger than the reserve, since they cannot be copied ahead. Nothing
/// if there are none.
pub(super) fn large_first(problem: &Problem, reserve_bytes: u64) -> Option<Holds> {
    let is_large = |&index: &usize| problem.uses[index].size_bytes / LARGE_FACTOR >= reserve_bytes;
    let mut large: Vec<usize> = (0..problem.uses.len()).filter(is_large).collect();
    if reserve_bytes == 0 || large.is_empty() {
        return None;
    }
    let mut holds = Holds::none(problem, 1);
    let limit = problem.device.budget_bytes().saturating_sub(reserve_bytes);
    large.sort_by_key(|&index| {
        let used = &problem.uses[index];
        (Reverse(class(used)), Reverse(used.size_bytes), index)
    });
    for index in large {
        holds.try_hold(problem, index, limit);
    }
    Some(evenly(problem, holds, reserve_bytes))
}

/// Adds holds to `holds`.
fn evenly(problem: &Problem, mut holds: Holds, reserve_bytes: u64) -> Holds {
    let limit = problem.device.budget_bytes().saturating_sub(reserve_bytes);
    let elapsed = elapsed(problem);
    let mut gaps: Vec<(i64, usize)> =
        problem.uses.iter().enumerate().map(|(index, used)| (class(used).saturating_neg(), index)).collect();
    gaps.retain(|&(_, index)| !holds.is_held(index));
    gaps.sort_by_key(|&(class, index)| (class, problem.uses[problem.uses[index].next].step, index));
    for class in gaps.chunk_by(|left, right| left.0 == right.0) {
        let total: f64 = class.iter().map(|&(_, index)| problem.uses[index].copy_ns as f64).sum();
        let share = share_that_fits(problem, &holds, class, limit);
        // Copy time of the gaps that were not held so far.
        let mut copied = 0.0;
        let mut left = Vec::new();
        for &(_, index) in class {
            let used = &problem.uses[index];
            let copy_ns = used.copy_ns as f64;
            let due = (1.0 - share) * total * elapsed[problem.uses[used.next].step];
            let spare = copied + copy_ns / 2.0 <= due;
            if spare || !holds.try_hold(problem, index, limit) {
                copied += copy_ns;
                left.push(index);
            }
        }
        for index in left {
            holds.try_hold(problem, index, limit);
        }
    }
    holds
}

/// The holds of a cache that drops the tensor which was not used for the longest time.
pub(super) fn recent(problem: &Problem) -> Holds {
    let mut holds = Holds::none(problem, 1);
    // A gap ends with a hit if the tensors that are used within it fit. Shorter gaps need less.
    let mut gaps: Vec<usize> = (0..problem.uses.len()).collect();
    gaps.sort_by_key(|&index| problem.uses[index].distance);
    for index in gaps {
        holds.try_hold(problem, index, problem.device.budget_bytes());
    }
    holds
}

/// The share of the compute time that has passed when each step starts. Without compute times, the share of the steps.
fn elapsed(problem: &Problem) -> Vec<f64> {
    let (busy, steps) = (problem.busy_ns() as f64, problem.steps.len() as f64);
    let mut passed = 0.0;
    let shares = problem.steps.iter().map(|step| {
        // The middle of the step.
        let share = if busy > 0.0 { step.time_ns as f64 / busy } else { 1.0 / steps };
        passed += share;
        passed - share / 2.0
    });
    shares.collect()
}

/// The value of holding a tensor over a gap, on a logarithmic scale.
fn class(gap: &Use) -> i64 {
    let occupied = gap.size_bytes as f64 * (gap.distance - 1) as f64;
    if occupied == 0.0 { i64::MAX } else { ((gap.copy_ns as f64 / occupied).ln() / CLASS_FACTOR.ln()).floor() as i64 }
}

/// About how much of a class of gaps fits below `limit`, 0 to 1.
fn share_that_fits(problem: &Problem, holds: &Holds, class: &[(i64, usize)], limit: u64) -> f64 {
    let free: f64 = holds.loads().iter().map(|&load| limit.saturating_sub(load) as f64).sum();
    let occupied = |index: usize| problem.uses[index].size_bytes as f64 * (problem.uses[index].distance - 1) as f64;
    let wanted: f64 = class.iter().map(|&(_, index)| occupied(index)).sum();
    if wanted > free { free / wanted } else { 1.0 }
}
