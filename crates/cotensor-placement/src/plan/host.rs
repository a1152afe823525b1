use crate::device::Device;
use crate::trace::Operation;

/// Orders of magnitude around the estimated number of operations on the host that are tried.
const TRIED: [f64; 5] = [0.8, 0.95, 1.0, 1.05, 1.2];

/// For each operation, whether it must run on the host: it does not fit on the device.
pub(super) fn forced(sizes: &[u64], operations: &[Operation], device: &Device) -> Vec<bool> {
    let need = |operation: &Operation| {
        operation.workspace_bytes + operation.uses.iter().map(|&tensor| sizes[tensor]).sum::<u64>()
    };
    operations.iter().map(|operation| need(operation) > device.budget_bytes()).collect()
}

/// Placements to try besides `forced`: some operations on the host, in the order of copy time saved for the time lost,
/// and all of them.
pub(super) fn placements(sizes: &[u64], operations: &[Operation], device: &Device, forced: &[bool]) -> Vec<Vec<bool>> {
    let mut choices = choices(sizes, operations, device, forced);
    let all = operations.iter().all(|operation| operation.cpu_ns.is_some()).then(|| vec![true; operations.len()]);
    if choices.is_empty() {
        return all.into_iter().collect();
    }
    // The number at which copying and computing take the same time.
    let mut on_device = vec![false; sizes.len()];
    for operation in operations.iter().zip(forced).filter(|&(_, forced)| !forced).map(|(operation, _)| operation) {
        operation.uses.iter().for_each(|&tensor| on_device[tensor] = true);
    }
    let used: u64 = sizes.iter().zip(&on_device).filter(|&(_, used)| *used).map(|(size, _)| size).sum();
    let mut copying = device.copy_ns(used.saturating_sub(device.budget_bytes())) as f64;
    let mut computing: f64 = operations.iter().map(|operation| operation.compute_ns as f64).sum();
    choices.sort_by(|left, right| {
        (left.longer * right.saved).total_cmp(&(right.longer * left.saved)).then(left.spread.cmp(&right.spread))
    });
    let mut enough = 0usize;
    for choice in &choices {
        if choice.longer > 0.0 && copying <= computing {
            break;
        }
        copying -= choice.saved;
        computing += choice.longer;
        enough += 1;
    }
    let mut counts: Vec<usize> = TRIED.iter().map(|factor| (enough as f64 * factor).round() as usize).collect();
    counts.extend([enough.saturating_sub(1), enough + 1, choices.len()]);
    counts.retain(|count| (1..=choices.len()).contains(count));
    counts.sort_unstable();
    counts.dedup();
    let with = |count: &usize| {
        let mut placement = forced.to_vec();
        choices[..*count].iter().for_each(|choice| placement[choice.operation] = true);
        placement
    };
    counts.iter().map(with).chain(all).collect()
}

/// An operation that may run on the host.
struct Choice {
    operation: usize,
    /// Time lost on the host, and copy time saved, in nanoseconds.
    longer: f64,
    saved: f64,
    /// Order among equal choices: any first part of them is spread over the period.
    spread: u32,
}

/// Operations that change no tensor and share none that is changed, so that host and device copies stay equal.
fn choices(sizes: &[u64], operations: &[Operation], device: &Device, forced: &[bool]) -> Vec<Choice> {
    let mut written = vec![false; sizes.len()];
    operations.iter().flat_map(|operation| &operation.writes).for_each(|&tensor| written[tensor] = true);
    let free = |&(index, operation): &(usize, &Operation)| {
        !forced[index] && operation.uses.iter().all(|&tensor| !written[tensor])
    };
    let choice = |(index, operation): (usize, &Operation)| {
        Some(Choice {
            operation: index,
            longer: operation.cpu_ns? as f64 - operation.compute_ns as f64,
            saved: operation.uses.iter().map(|&tensor| device.copy_ns(sizes[tensor]) as f64).sum(),
            spread: (index as u32).reverse_bits(),
        })
    };
    operations.iter().enumerate().filter(free).filter_map(choice).collect()
}
