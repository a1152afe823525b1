use crate::device::Device;
use crate::trace::Trace;

/// A time that no plan can beat, as the mean of one period in the long run, in nanoseconds.
///
/// With C the compute time, W the bytes of all used tensors, B the sum of the budgets and β the sum of the bandwidths, it
/// is the larger of C and (W − B) / β: at most B bytes are still on the devices when the next period begins. If operations may run on the host,
/// each may be divided between the host and the device, which is more than any plan can do.
pub fn bound_ns(trace: &Trace, devices: &[Device]) -> f64 {
    let sizes = trace.sizes();
    let used: u64 = trace.used().iter().map(|&tensor| sizes[tensor]).sum();
    let bandwidth: f64 = devices.iter().map(|device| device.bandwidth() as f64).sum();
    let budget = devices.iter().fold(0u64, |sum, device| sum.saturating_add(device.budget_bytes()));
    let per_byte = 1e9 / bandwidth;
    let mut copying = used.saturating_sub(budget) as f64 * per_byte;
    let mut computing = 0.0;
    // (time that an operation takes longer on the host, copy time that this saves)
    let mut choices = Vec::new();
    for operation in trace.operations() {
        let on_device = operation.compute_ns as f64;
        computing += on_device;
        let bytes: u64 = operation.uses.iter().map(|&tensor| sizes[tensor]).sum();
        if let Some(on_host) = operation.cpu_ns {
            let (longer, saved) = (on_host as f64 - on_device, bytes as f64 * per_byte);
            if longer <= 0.0 {
                computing += longer;
                copying -= saved;
            } else {
                choices.push((longer, saved));
            }
        }
    }
    choices.sort_by(|left, right| (left.0 * right.1).total_cmp(&(right.0 * left.1)));
    for (longer, saved) in choices {
        if copying <= computing {
            break;
        }
        // The part at which both take the same time.
        let part = ((copying - computing) / (longer + saved)).min(1.0);
        computing += part * longer;
        copying -= part * saved;
    }
    computing.max(copying)
}
