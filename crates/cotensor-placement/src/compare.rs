use crate::bound::bound_ns;
use crate::decision::Strategy;
use crate::device::Device;
use crate::divide::{divide, part};
use crate::simulator::{Machine, Outcome};
use crate::strategy::{AllCpu, Flow, Genoa, Lru, Pinned};
use crate::time::Nanos;
use crate::trace::Trace;
use cotensor_core::{Error, Result};

/// Periods before the measured ones: Flow records two periods and reaches the steady state of its plan.
const WARM_UP_PERIODS: usize = 6;
/// Operations in one simulation at most.
const OPERATIONS_MAX: usize = 1 << 24;

/// Makes a strategy for what one device runs.
type Kind = fn(&Trace, &Device) -> Box<dyn Strategy>;

/// A trace under each strategy.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The device of each operation; see [`divide`].
    pub places: Vec<usize>,
    /// A time of a period that no plan can beat, in nanoseconds; see [`bound_ns`].
    pub bound_ns: f64,
    /// Time of a period if every tensor is on its device, in nanoseconds.
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
    /// Bytes copied to the devices and from them.
    pub copied_bytes: f64,
    /// Time in which an operation waited for its tensors, in nanoseconds.
    pub stall_ns: f64,
    /// The most memory used at once on a device, in bytes.
    pub peak_bytes: u64,
    /// The whole outcome of each device.
    pub outcomes: Vec<Outcome>,
}

/// Simulates a trace on `devices` under every strategy, over at least as many periods as the trace has tensors or was
/// recorded for. The devices divide the operations as [`divide`] does.
///
/// # Errors
/// `OverBudget` if an operation does not fit on its device and has no time on the host; `Invalid` without devices, or if
/// the simulation would be too long.
pub fn compare(trace: &Trace, devices: &[Device]) -> Result<Comparison> {
    let places = divide(trace, devices)?;
    let parts = (0..devices.len()).map(|number| part(trace, &places, number)).collect::<Result<Vec<_>>>()?;
    let mut kinds: Vec<Kind> = vec![
        // A trace is a recorded period.
        |trace, device| Box::new(Flow::new(*device).with_forecast(trace.operations().to_vec())),
        |_, _| Box::new(Genoa::default()),
        |_, _| Box::new(Lru::default()),
        |trace, device| Box::new(Pinned::new(trace, device)),
    ];
    if trace.runs_on_cpu() {
        kinds.push(|_, _| Box::new(AllCpu));
    }
    let strategies = kinds.into_iter().map(|kind| {
        let mut all: Vec<_> = parts.iter().zip(devices).map(|(part, device)| kind(part, device)).collect();
        let mut all: Vec<&mut dyn Strategy> = all.iter_mut().map(|strategy| &mut **strategy as _).collect();
        measure_on(trace, devices, &places, &mut all)
    });
    Ok(Comparison {
        bound_ns: bound_ns(trace, devices),
        resident_ns: trace.compute_ns(),
        strategies: strategies.collect::<Result<_>>()?,
        places,
    })
}

/// Simulates a trace on one device under one strategy.
///
/// # Errors
/// Those of [`compare`] and of [`Simulator::run`](crate::Simulator::run).
pub fn measure(trace: &Trace, device: &Device, strategy: &mut dyn Strategy) -> Result<Measured> {
    measure_on(trace, &[*device], &vec![0; trace.operations().len()], &mut [strategy])
}

fn measure_on(
    trace: &Trace,
    devices: &[Device],
    places: &[usize],
    strategies: &mut [&mut dyn Strategy],
) -> Result<Measured> {
    let count = trace.operations().len() * devices.len();
    let tensors = trace.used().len();
    if (WARM_UP_PERIODS + trace.periods() as usize) * count > OPERATIONS_MAX {
        let text = format!("{} periods of {count} operations are more than {OPERATIONS_MAX}", trace.periods());
        return Err(Error::invalid(text).in_field("periods"));
    }
    let mut machine = Machine::new(trace, devices, places)?;
    machine.run_periods(WARM_UP_PERIODS, strategies)?;
    machine.take_outcomes();
    // Whole cycles of the plan, as far as the limit allows.
    let cycle = strategies.iter().map(|strategy| strategy.cycle_periods()).max().unwrap_or(1);
    let wanted = (trace.periods() as usize).max(tensors).next_multiple_of(cycle);
    let periods = wanted.min(OPERATIONS_MAX / count - WARM_UP_PERIODS).max(trace.periods() as usize);
    machine.run_periods(periods, strategies)?;
    let outcomes = machine.take_outcomes();
    let mean = |total: u64| total as f64 / periods as f64;
    let sum = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
    Ok(Measured {
        name: strategies.first().map(|strategy| strategy.name().to_owned()).unwrap_or_default(),
        periods,
        // All devices have one clock.
        time_ns: mean(outcomes.iter().map(|outcome| outcome.elapsed_ns).max().unwrap_or(0)),
        copied_bytes: mean(sum(|outcome| outcome.copied_bytes + outcome.returned_bytes)),
        stall_ns: mean(sum(|outcome| outcome.stall_ns)),
        peak_bytes: outcomes.iter().map(|outcome| outcome.peak_bytes).max().unwrap_or(0),
        outcomes,
    })
}
