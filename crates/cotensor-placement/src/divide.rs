use crate::device::Device;
use crate::plan::{Effort, Planner};
use crate::time::Nanos;
use crate::trace::{Operation, Trace};
use cotensor_core::{Error, ErrorKind, Result};

/// A division with more changes of the device must be better by this factor: each change costs time that no trace has.
const BETTER: f64 = 0.98;
/// Changes of the device within a period, at most.
const CHANGES_MAX: usize = 256;

/// Divides the operations of a period among `devices`. Returns the device of each operation.
///
/// A program that fits runs on the first devices, in the order of both, so that it changes the device seldom. Otherwise
/// the devices take turns with groups of operations, so that one copies while another computes. Each gets tensors in
/// proportion to what it can keep and copy in a period. Of several sizes of groups, the one with the shortest planned
/// period is taken.
///
/// # Errors
/// `OverBudget` names the first operation that fits on no device and has no time on the host; `Invalid` without devices.
pub fn divide(trace: &Trace, devices: &[Device]) -> Result<Vec<usize>> {
    if devices.is_empty() {
        return Err(Error::invalid("operations need at least one device").in_field("devices"));
    }
    let sizes = trace.sizes();
    let fits = |operation: &Operation, device: &Device| {
        trace.needed_bytes(operation) <= device.budget_bytes() || operation.cpu_ns.is_some()
    };
    let fits_nowhere = |operation: &&Operation| !devices.iter().any(|device| fits(operation, device));
    if let Some(operation) = trace.operations().iter().find(fits_nowhere) {
        let budget = devices.iter().map(Device::budget_bytes).max().unwrap_or(0);
        let text = format!(
            "operation {:?} needs {} bytes, more than the largest budget of {budget} bytes, and has no time on the CPU",
            operation.name,
            trace.needed_bytes(operation)
        );
        return Err(Error::new(ErrorKind::OverBudget, text));
    }
    if let Some(places) = in_order(trace, &sizes, devices) {
        return Ok(places);
    }
    let shares = shares(trace, &sizes, devices);
    let mut best: Option<(f64, Vec<usize>)> = None;
    let mut groups = devices.len();
    while groups <= trace.operations().len().min(CHANGES_MAX) || best.is_none() {
        let places = in_turns(trace, &sizes, devices, &shares, groups, &fits);
        let time = period_ns(trace, devices, &places)?;
        if best.as_ref().is_none_or(|(shortest, _)| time < shortest * BETTER) {
            best = Some((time, places));
        }
        groups *= 2;
    }
    Ok(best.map(|(_, places)| places).unwrap_or_default())
}

/// As many operations on each device as fit without copies; nothing if some are left over.
fn in_order(trace: &Trace, sizes: &[u64], devices: &[Device]) -> Option<Vec<usize>> {
    let mut places = Vec::with_capacity(trace.operations().len());
    let (mut device, mut tensors, mut workspace) = (0, Tensors::new(sizes), 0);
    for operation in trace.operations() {
        workspace = operation.workspace_bytes.max(workspace);
        while tensors.bytes + tensors.missing(operation) + workspace > devices.get(device)?.budget_bytes() {
            device += 1;
            (tensors, workspace) = (Tensors::new(sizes), operation.workspace_bytes);
        }
        tensors.add(operation);
        places.push(device);
    }
    Some(places)
}

/// The part of all tensors that each device should have: what it keeps and copies in a period, if all copy all the time.
fn shares(trace: &Trace, sizes: &[u64], devices: &[Device]) -> Vec<f64> {
    let workspace = trace.operations().iter().map(|operation| operation.workspace_bytes).max().unwrap_or(0);
    let kept = |device: &Device| device.budget_bytes().saturating_sub(workspace) as f64;
    let used: u64 = trace.used().iter().map(|&tensor| sizes[tensor]).sum();
    let bandwidth: f64 = devices.iter().map(|device| device.bandwidth() as f64).sum();
    let seconds = (used as f64 - devices.iter().map(kept).sum::<f64>()).max(0.0) / bandwidth;
    let bytes: Vec<f64> = devices.iter().map(|device| kept(device) + device.bandwidth() as f64 * seconds).collect();
    let total: f64 = bytes.iter().sum();
    bytes.iter().map(|bytes| bytes / total.max(1.0)).collect()
}

/// Deals `groups` groups of about equal size to the devices, each to the one that lacks most of its share.
fn in_turns(
    trace: &Trace,
    sizes: &[u64],
    devices: &[Device],
    shares: &[f64],
    groups: usize,
    fits: &impl Fn(&Operation, &Device) -> bool,
) -> Vec<usize> {
    let used: u64 = trace.used().iter().map(|&tensor| sizes[tensor]).sum();
    let group_bytes = used as f64 / groups as f64;
    let mut given: Vec<Tensors<'_>> = devices.iter().map(|_| Tensors::new(sizes)).collect();
    let mut places: Vec<usize> = Vec::with_capacity(trace.operations().len());
    let (mut all, mut end) = (Tensors::new(sizes), 0.0);
    for operation in trace.operations() {
        let lacks = |device: usize| shares[device] * (all.bytes as f64 + group_bytes) - given[device].bytes as f64;
        let mut place = places.last().copied();
        // A group ends with its bytes; an operation whose tensors are on one device already goes there.
        if all.bytes as f64 >= end || place.is_some_and(|place| !fits(operation, &devices[place])) {
            let possible = (0..devices.len()).filter(|&device| fits(operation, &devices[device]));
            place = possible.max_by(|&left, &right| lacks(left).total_cmp(&lacks(right)).then(right.cmp(&left)));
            end = all.bytes as f64 + group_bytes;
        }
        let has_all = |&device: &usize| !operation.uses.is_empty() && given[device].missing(operation) == 0;
        let there = (0..devices.len()).find(has_all).filter(|&device| fits(operation, &devices[device]));
        let place = there.or(place).unwrap_or(0);
        given[place].add(operation);
        all.add(operation);
        places.push(place);
    }
    places
}

/// The longest planned period of a device.
fn period_ns(trace: &Trace, devices: &[Device], places: &[usize]) -> Result<f64> {
    let periods = devices.iter().enumerate().map(|(number, device)| {
        let part = part(trace, places, number)?;
        Ok(Planner::new(*device).with_effort(Effort(0)).plan_trace(&part)?.period_ns)
    });
    Ok(periods.collect::<Result<Vec<f64>>>()?.into_iter().fold(0.0, f64::max))
}

/// Tensors on a device.
struct Tensors<'a> {
    sizes: &'a [u64],
    has: Vec<bool>,
    bytes: u64,
}

impl<'a> Tensors<'a> {
    fn new(sizes: &'a [u64]) -> Self {
        Self { sizes, has: vec![false; sizes.len()], bytes: 0 }
    }

    /// The bytes of an operation's tensors that are not there.
    fn missing(&self, operation: &Operation) -> u64 {
        operation.uses.iter().filter(|&&tensor| !self.has[tensor]).map(|&tensor| self.sizes[tensor]).sum()
    }

    fn add(&mut self, operation: &Operation) {
        self.bytes += self.missing(operation);
        operation.uses.iter().for_each(|&tensor| self.has[tensor] = true);
    }
}

/// The period as device `number` sees it: the operations of other devices use nothing there.
///
/// # Errors
/// Those of [`Trace::new`], which a valid trace does not cause.
pub fn part(trace: &Trace, places: &[usize], number: usize) -> Result<Trace> {
    let operation = |(operation, &place): (&Operation, &usize)| {
        if place == number { operation.clone() } else { elsewhere(operation, operation.compute_ns) }
    };
    let operations = trace.operations().iter().zip(places).map(operation).collect();
    Trace::new(trace.tensors().to_vec(), operations, trace.periods())
}

/// An operation that runs on another device for `elapsed_ns`.
pub(crate) fn elsewhere(operation: &Operation, elapsed_ns: Nanos) -> Operation {
    Operation {
        name: operation.name.clone(),
        uses: Vec::new(),
        writes: Vec::new(),
        compute_ns: elapsed_ns,
        cpu_ns: None,
        workspace_bytes: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Machine, Strategy, compare, cyclic};

    const SIZE: u64 = 1_000_000;
    const LINK: u64 = 1_000_000_000;

    fn device(tensors: u64, bandwidth: u64) -> Device {
        Device::new(tensors * SIZE, bandwidth, 0).unwrap()
    }

    fn counts(places: &[usize], devices: usize) -> Vec<usize> {
        (0..devices).map(|device| places.iter().filter(|&&place| place == device).count()).collect()
    }

    fn changes(places: &[usize]) -> usize {
        places.windows(2).filter(|pair| pair[0] != pair[1]).count()
    }

    #[test]
    fn parts_follow_capacity_and_link() {
        // A copy takes 1 ms, a hundred times as long as an operation.
        let trace = cyclic(80, SIZE, 10_000).unwrap();
        let divided = |devices: &[Device]| divide(&trace, devices).unwrap();
        assert_eq!(counts(&divided(&[device(10, LINK)]), 1), [80]);
        // What fits stays on the first devices.
        let three = divided(&[device(60, LINK), device(60, LINK), device(60, LINK)]);
        assert_eq!((counts(&three, 3), changes(&three)), (vec![60, 20, 0], 1));
        assert_eq!(counts(&divided(&[device(20, LINK), device(20, LINK)]), 2), [40, 40]);
        // With p copies over the slower link in a period, 20 + 3 p and 12 + p are 80 tensors: p is 12.
        let unequal = counts(&divided(&[device(20, 3 * LINK), device(12, LINK)]), 2);
        assert!((55..=57).contains(&unequal[0]), "{unequal:?}");
        // One is too small for the operations.
        let small = [device(1, LINK).with_budget(SIZE - 1), device(10, LINK)];
        assert_eq!(counts(&divided(&small), 2), [0, 80]);
        let error = divide(&trace, &small[..1]).unwrap_err();
        assert!(error.to_string().contains("\"op0\" needs 1000000 bytes, more than the largest budget"), "{error}");
        assert!(divide(&trace, &[]).is_err());
    }

    #[test]
    fn devices_copy_while_others_compute() {
        // One device of 20 of 80 tensors needs 60 copies in a period; of two, each needs 20, at the same time.
        let trace = cyclic(80, SIZE, 250_000).unwrap();
        let one = compare(&trace, &[device(20, LINK)]).unwrap();
        let two = compare(&trace, &[device(20, LINK), device(20, LINK)]).unwrap();
        assert_eq!((one.bound_ns, two.bound_ns), (60e6, 20e6));
        assert!(one.strategies[0].time_ns <= 1.05 * one.bound_ns);
        assert!(two.strategies[0].time_ns <= 1.15 * two.bound_ns, "{}", two.strategies[0].time_ns);
        for other in &two.strategies[1..] {
            assert!(two.strategies[0].time_ns <= other.time_ns, "{}", other.name);
        }
    }

    #[test]
    fn every_operation_has_a_device() {
        let trace = cyclic(4, SIZE, 0).unwrap();
        let devices = [device(2, 1), device(2, 1)];
        for places in [vec![0, 0, 1], vec![0, 0, 1, 2], vec![0; 5]] {
            assert!(Machine::new(&trace, &devices, &places).is_err(), "{places:?}");
        }
        let mut machine = Machine::new(&trace, &devices, &[0, 1, 1, 1]).unwrap();
        let (mut first, mut second) = (crate::Genoa::default(), crate::Genoa::default());
        let mut strategies: [&mut dyn Strategy; 2] = [&mut first, &mut second];
        machine.run_periods(3, &mut strategies).unwrap();
        let outcomes = machine.take_outcomes();
        assert_eq!([outcomes[0].uses, outcomes[1].uses], [3, 9]);
        assert_eq!(outcomes[0].elapsed_ns, outcomes[1].elapsed_ns);
    }
}
