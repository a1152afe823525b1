use super::construct::{even, large_first, recent};
use super::holds::Holds;
use super::host::{forced, placements};
use super::improve::improved;
use super::plan::{Eviction, Plan, Prefetch};
use super::problem::Problem;
use super::rotate::rotating;
use super::schedule::Schedule;
use crate::device::Device;
use crate::trace::{Operation, Trace};
use cotensor_core::{Error, ErrorKind, Result};

/// The cycle of a small plan is repeated up to this often, while it has at most so many uses.
const REPEATS_MAX: usize = 4;
const REPEATED_USES_MAX: usize = 128;
/// While the placements so far have at most so many uses, all constructions are tried for each of them; later only those with the
/// reserve of the best one.
const CONSTRUCTED_USES_MAX: usize = 4096;

/// How much a planner may compute, in uses of tensors that it schedules while it improves a plan. Bounds the time on
/// every machine without a clock, so that plans do not depend on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort(pub usize);

impl Default for Effort {
    /// A few milliseconds.
    fn default() -> Self {
        Self(400_000)
    }
}

/// Makes plans.
#[derive(Clone, Copy, Debug)]
pub struct Planner {
    device: Device,
    effort: Effort,
}

impl Planner {
    /// A planner for `device`.
    pub fn new(device: Device) -> Self {
        Self { device, effort: Effort::default() }
    }

    /// The same planner with another effort.
    #[must_use]
    pub fn with_effort(self, effort: Effort) -> Self {
        Self { effort, ..self }
    }

    /// The plan for the period of a trace.
    ///
    /// # Errors
    /// Those of [`Planner::plan`].
    pub fn plan_trace(&self, trace: &Trace) -> Result<Plan> {
        self.plan(&trace.sizes(), trace.operations())
    }

    /// The plan for a period of `operations`, which use tensors of `sizes` bytes.
    ///
    /// # Errors
    /// `OverBudget` names the first operation that does not fit on the device and has no time on the host.
    ///
    /// # Panics
    /// If an operation uses a tensor that `sizes` does not have.
    pub fn plan(&self, sizes: &[u64], operations: &[Operation]) -> Result<Plan> {
        let forced = forced(sizes, operations, &self.device);
        let impossible = |&(operation, forced): &(&Operation, &bool)| *forced && operation.cpu_ns.is_none();
        if let Some((operation, _)) = operations.iter().zip(&forced).find(impossible) {
            let text = format!(
                "operation {:?} needs more memory than the budget of {} bytes, and has no time on the CPU",
                operation.name,
                self.device.budget_bytes()
            );
            return Err(Error::new(ErrorKind::OverBudget, text));
        }
        // The placement with the lowest bound first, so that the others need not be tried where its plan is fast enough.
        let placements = [forced.clone()].into_iter().chain(placements(sizes, operations, &self.device, &forced));
        let mut placed: Vec<(f64, Vec<bool>, Problem)> = placements
            .map(|on_host| {
                let problem = Problem::new(sizes, operations, &on_host, &self.device);
                (problem.bound_ns(), on_host, problem)
            })
            .collect();
        placed.sort_by(|left, right| left.0.total_cmp(&right.0));
        let mut best: Option<Candidate> = None;
        let mut constructed_uses = 0;
        for (bound_ns, on_host, problem) in placed {
            if best.as_ref().is_some_and(|best| best.cost <= bound_ns) {
                break;
            }
            let known = best.as_ref().map(|best| best.reserve).filter(|_| constructed_uses > CONSTRUCTED_USES_MAX);
            let (holds, cost, reserve) = constructed(&problem, known);
            constructed_uses += problem.uses.len();
            if best.as_ref().is_none_or(|best| cost < best.cost) {
                best = Some(Candidate { problem, on_host, holds, cost, reserve, is_whole: known.is_none() });
            }
        }
        let mut best = best.ok_or_else(|| Error::invalid("a plan needs an operation"))?;
        if !best.is_whole {
            let (holds, cost, _) = constructed(&best.problem, None);
            if cost < best.cost {
                (best.holds, best.cost) = (holds, cost);
            }
        }
        let bound_ns = best.problem.bound_ns();
        // A longer cycle can use memory that a short one leaves over.
        let effort = self.effort.0 / REPEATS_MAX;
        for repeats in 1..=REPEATS_MAX {
            let holds = best.holds.repeated(&best.problem, repeats);
            if repeats > 1 && holds.uses() > REPEATED_USES_MAX {
                break;
            }
            let (holds, cost) = improved(&best.problem, holds, best.cost, bound_ns, effort);
            if cost < best.cost {
                (best.holds, best.cost) = (holds, cost);
            }
        }
        Ok(best.plan())
    }
}

/// A placement of operations, with holds.
struct Candidate {
    problem: Problem,
    on_host: Vec<bool>,
    holds: Holds,
    cost: f64,
    /// Memory that its construction kept free for copies, in bytes.
    reserve: u64,
    /// Whether all constructions were tried.
    is_whole: bool,
}

/// The cheapest of the constructions, with its cost and its reserve: those with one `reserve`, or all.
fn constructed(problem: &Problem, reserve: Option<u64>) -> (Holds, f64, u64) {
    let mut candidates = Vec::new();
    for reserve in reserve.map_or_else(|| reserves(problem), |reserve| vec![reserve]) {
        candidates.push((even(problem, reserve), reserve));
        candidates.extend(large_first(problem, reserve).map(|holds| (holds, reserve)));
        candidates.extend(rotating(problem, reserve).map(|holds| (holds, reserve)));
    }
    if reserve.is_none() {
        candidates.extend([(recent(problem), 0), (Holds::none(problem, 1), 0)]);
    }
    let mut best: Option<(Holds, f64, u64)> = None;
    for (holds, reserve) in candidates {
        // The copies alone take this time.
        let copying = holds.copying_ns(problem);
        if best.as_ref().is_some_and(|best| best.1 <= copying) {
            continue;
        }
        let cost = Schedule::new(problem, &holds).cost(problem, &holds);
        if best.as_ref().is_none_or(|best| cost < best.1) {
            best = Some((holds, cost, reserve));
        }
    }
    best.unwrap_or_else(|| (Holds::none(problem, 1), 0.0, 0))
}

/// Sizes of the memory that is kept free for copies ahead of their use, in bytes: none, and some usual or large tensors.
fn reserves(problem: &Problem) -> Vec<u64> {
    let mut sizes: Vec<u64> = problem.uses.iter().map(|used| used.size_bytes).collect();
    sizes.sort_unstable();
    let at = |share: usize| sizes.get(sizes.len().saturating_sub(1) * share / 4).copied().unwrap_or(0);
    let mut reserves = vec![0, at(2), at(3), 2 * at(3), 4 * at(3), at(4), 2 * at(4)];
    reserves.sort_unstable();
    reserves.dedup();
    reserves
}

impl Candidate {
    fn plan(&self) -> Plan {
        let Self { problem, holds, .. } = self;
        let schedule = Schedule::new(problem, holds);
        let (steps, uses) = (problem.steps.len(), problem.uses.len());
        let starts = schedule.expected(problem);
        let prefetches: Vec<Prefetch> = schedule
            .copies
            .iter()
            .zip(starts)
            .map(|(copy, start_ns)| Prefetch {
                tensor: problem.uses[copy.index].tensor,
                step: copy.step,
                lead: copy.lead,
                start_ns,
            })
            .collect();
        let dropped = (0..holds.uses()).filter(|&index| !holds.is_held(index));
        let evictions: Vec<Eviction> = dropped
            .map(|index| Eviction {
                tensor: problem.uses[index % uses].tensor,
                step: index / uses * steps + problem.uses[index % uses].step,
            })
            .collect();
        let mut leaves = vec![false; problem.tensors];
        evictions.iter().for_each(|eviction| leaves[eviction.tensor] = true);
        let mut residents: Vec<usize> =
            problem.uses.iter().map(|used| used.tensor).filter(|&tensor| !leaves[tensor]).collect();
        residents.sort_unstable();
        residents.dedup();
        Plan {
            operations: steps,
            periods: holds.periods,
            residents,
            prefetches,
            evictions,
            on_cpu: (0..steps).filter(|&step| self.on_host[step]).collect(),
            period_ns: schedule.period_ns(problem, holds),
        }
    }
}
