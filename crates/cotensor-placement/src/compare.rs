use crate::bound::bound_ns;
use crate::device::Device;
use crate::simulator::{Faults, Outcome, Simulator};
use crate::strategy::{AllCpu, Flow, Genoa, Lru, Pinned, Strategy};
use crate::time::Nanos;
use crate::trace::Trace;
use cotensor_core::{Error, Result};

/// Periods before the measured ones: Flow records two periods and reaches the steady state of its plan.
const WARM_UP_PERIODS: usize = 6;
/// Operations in one simulation at most.
const OPERATIONS_MAX: usize = 1 << 24;

/// A trace under each strategy.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// A time of a period that no plan can beat, in nanoseconds; see [`bound_ns`].
    pub bound_ns: f64,
    /// Time of a period if everything is on the device, in nanoseconds.
    pub resident_ns: Nanos,
    /// The strategies: flow, genoa, lru, pinned, and cpu if every operation can run there.
    pub strategies: Vec<Measured>,
}

/// What a strategy needs. Means of one period in the long run, but for the peak.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Name of the strategy.
    pub name: String,
    /// Periods that were measured.
    pub periods: usize,
    /// Time, in nanoseconds.
    pub time_ns: f64,
    /// Bytes copied to the device and from it.
    pub copied_bytes: f64,
    /// Time in which an operation waited for its tensors, in nanoseconds.
    pub stall_ns: f64,
    /// The most memory used at once, in bytes.
    pub peak_bytes: u64,
    /// The whole outcome.
    pub outcome: Outcome,
}

/// Simulates a trace under every strategy, over at least as many periods as the trace has tensors or was recorded for.
///
/// # Errors
/// `OverBudget` if an operation does not fit on the device and has no time on the host; `Invalid` if the simulation would
/// be too long.
pub fn compare(trace: &Trace, device: &Device) -> Result<Comparison> {
    let mut strategies: Vec<Box<dyn Strategy>> = vec![
        // A trace is a recorded period.
        Box::new(Flow::new(*device).with_forecast(trace.operations().to_vec())),
        Box::new(Genoa::default()),
        Box::new(Lru::default()),
        Box::new(Pinned::new(trace, device)),
    ];
    if trace.runs_on_cpu() {
        strategies.push(Box::new(AllCpu));
    }
    let strategies = strategies.into_iter().map(|mut strategy| measure(trace, device, strategy.as_mut()));
    Ok(Comparison {
        bound_ns: bound_ns(trace, device),
        resident_ns: trace.compute_ns(),
        strategies: strategies.collect::<Result<_>>()?,
    })
}

/// Simulates a trace under one strategy.
///
/// # Errors
/// Those of [`compare`] and of [`Simulator::run`].
pub fn measure(trace: &Trace, device: &Device, strategy: &mut dyn Strategy) -> Result<Measured> {
    let count = trace.operations().len();
    let tensors = trace.used().len();
    if (WARM_UP_PERIODS + trace.periods() as usize) * count > OPERATIONS_MAX {
        let text = format!("{} periods of {count} operations are more than {OPERATIONS_MAX}", trace.periods());
        return Err(Error::invalid(text).in_field("periods"));
    }
    let mut simulator = Simulator::new(trace, device, Faults::default());
    simulator.run_periods(WARM_UP_PERIODS, strategy)?;
    simulator.take_outcome();
    // Whole cycles of the plan, as far as the limit allows.
    let wanted = (trace.periods() as usize).max(tensors).next_multiple_of(strategy.cycle_periods());
    let periods = wanted.min(OPERATIONS_MAX / count - WARM_UP_PERIODS).max(trace.periods() as usize);
    simulator.run_periods(periods, strategy)?;
    let outcome = simulator.take_outcome();
    let mean = |total: u64| total as f64 / periods as f64;
    Ok(Measured {
        name: strategy.name().to_owned(),
        periods,
        time_ns: mean(outcome.elapsed_ns),
        copied_bytes: mean(outcome.copied_bytes + outcome.returned_bytes),
        stall_ns: mean(outcome.stall_ns),
        peak_bytes: outcome.peak_bytes,
        outcome,
    })
}
