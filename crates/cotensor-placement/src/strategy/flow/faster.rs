use super::alternative::Alternative;
use super::follow::Follower;
use super::phase::Phase;
use super::varying::Varying;
use crate::bound::bound_ns;
use crate::decision::{Move, Place, Strategy, View};
use crate::device::Device;
use crate::simulator::{Faults, Simulator};
use crate::strategy::{AllCpu, Genoa, Lru, Pinned};
use crate::time::Nanos;
use crate::trace::{Operation, Trace};

/// A simulation has about so many operations, half of them measured, in at most so many periods for each half. Longer periods that
/// change nothing are not compared.
const OPERATIONS: usize = 8192;
const PERIODS_MAX: usize = 16;
/// A plan that is so little above the bound is not compared, and an alternative must be faster by that much.
const REST: f64 = 1e-4;

/// The alternative that takes the least time for the period of `phase`, if the plan takes longer.
pub(super) fn faster(phase: &Phase, sizes: &[u64], device: &Device) -> Option<Alternative> {
    let changes = phase.operations.iter().any(|operation| !operation.writes.is_empty());
    if !changes && phase.operations.len() > OPERATIONS {
        return None;
    }
    let trace = Trace::of_period(sizes, phase.operations.clone());
    // Without changes, the planner's clock is exact.
    let mut best_ns = phase.plan.period_ns;
    if changes {
        let mut planned = Planned { phase: phase.clone(), follower: None, varying: Varying::default() };
        best_ns = period_ns(&trace, device, &mut planned, phase.plan.periods)?;
    }
    if best_ns <= bound_ns(&trace, &[*device]) * (1.0 + REST) {
        return None;
    }
    let pinned = Pinned::new(&trace, device);
    let mut all =
        vec![Alternative::Genoa(Genoa::default()), Alternative::Lru(Lru::default()), Alternative::Pinned(pinned)];
    if trace.runs_on_cpu() {
        all.push(Alternative::AllCpu(AllCpu));
    }
    let mut best = None;
    for alternative in all {
        let Some(time_ns) = period_ns(&trace, device, alternative.clone().strategy(), 1) else { continue };
        if time_ns < best_ns * (1.0 - REST) {
            (best, best_ns) = (Some(alternative), time_ns);
        }
    }
    best
}

/// Time of a period in the long run, whose decisions repeat after `cycle` periods; nothing if an operation does not fit.
fn period_ns(trace: &Trace, device: &Device, strategy: &mut dyn Strategy, cycle: usize) -> Option<f64> {
    let periods = (OPERATIONS / 2 / trace.operations().len()).clamp(1, PERIODS_MAX).next_multiple_of(cycle);
    let mut simulator = Simulator::new(trace, device, Faults::default());
    simulator.run_periods(periods, strategy).ok()?;
    simulator.take_outcome();
    simulator.run_periods(periods, strategy).ok()?;
    Some(simulator.take_outcome().elapsed_ns as f64 / periods as f64)
}

/// The plan of one phase alone, for the simulation.
struct Planned {
    phase: Phase,
    follower: Option<Follower>,
    varying: Varying,
}

impl Strategy for Planned {
    fn name(&self) -> &str {
        "planned"
    }

    fn arrive(&mut self, operation: &Operation, view: &View<'_>) -> Place {
        let Self { phase, follower, varying } = self;
        follower.get_or_insert_with(|| Follower::new(0, phase, 0, varying, view)).arrive(phase, operation, true, view)
    }

    fn next_move(&mut self, view: &View<'_>) -> Option<Move> {
        self.follower.as_mut()?.next_move(&self.phase, &self.varying, view)
    }

    fn finished(&mut self, operation: &Operation, elapsed_ns: Nanos, view: &View<'_>) {
        if let Some(follower) = &mut self.follower {
            follower.finished(&self.phase, operation, elapsed_ns, true, view);
        }
    }

    fn out_of_memory(&mut self, view: &View<'_>) {
        if let Some(follower) = &mut self.follower {
            follower.out_of_memory(&self.phase, &self.varying, view);
        }
    }
}
