use crate::device::Device;
use crate::time::Nanos;
use crate::trace::Operation;
use std::ops::Range;

/// One period as the planner sees it. An operation on the host uses nothing.
#[derive(Clone, Debug)]
pub(super) struct Problem {
    pub(super) device: Device,
    pub(super) steps: Vec<Step>,
    /// The uses of all steps, in order.
    pub(super) uses: Vec<Use>,
    /// Number of tensors in the recording.
    pub(super) tensors: usize,
}

/// An operation, on the device or on the host.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) time_ns: Nanos,
    /// Memory of its tensors and its workspace, in bytes.
    pub(super) need_bytes: u64,
    /// Its part of [`Problem::uses`].
    pub(super) uses: Range<usize>,
}

/// One use of a tensor, and the gap from it to the next use of the same tensor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Use {
    pub(super) step: usize,
    pub(super) tensor: usize,
    pub(super) size_bytes: u64,
    pub(super) copy_ns: Nanos,
    /// Whether the step changes the tensor.
    pub(super) writes: bool,
    /// The use that ends the gap, and how many steps later it is: 1 to the number of steps.
    pub(super) next: usize,
    pub(super) distance: usize,
    /// The use whose gap ends here.
    pub(super) previous: usize,
}

impl Problem {
    /// The period of `operations` on tensors of `sizes` bytes. `on_host` tells for each operation where it runs.
    pub(super) fn new(sizes: &[u64], operations: &[Operation], on_host: &[bool], device: &Device) -> Self {
        let mut steps = Vec::with_capacity(operations.len());
        let mut uses = Vec::new();
        for (step, (operation, &on_host)) in operations.iter().zip(on_host).enumerate() {
            let first = uses.len();
            if on_host {
                let time_ns = operation.cpu_ns.unwrap_or(operation.compute_ns);
                steps.push(Step { time_ns, need_bytes: 0, uses: first..first });
                continue;
            }
            uses.extend(operation.uses.iter().map(|&tensor| Use {
                step,
                tensor,
                size_bytes: sizes[tensor],
                copy_ns: device.copy_ns(sizes[tensor]),
                writes: operation.writes.binary_search(&tensor).is_ok(),
                next: 0,
                distance: 0,
                previous: 0,
            }));
            let need_bytes =
                operation.workspace_bytes + operation.uses.iter().map(|&tensor| sizes[tensor]).sum::<u64>();
            steps.push(Step { time_ns: operation.compute_ns, need_bytes, uses: first..uses.len() });
        }
        let mut problem = Self { device: *device, steps, uses, tensors: sizes.len() };
        problem.link();
        problem
    }

    /// Finds the next use of every use, around the end of the period.
    fn link(&mut self) {
        let steps = self.steps.len();
        let mut latest = vec![usize::MAX; self.tensors];
        for _ in 0..2 {
            for index in 0..self.uses.len() {
                let now = self.uses[index];
                let before = std::mem::replace(&mut latest[now.tensor], index);
                if before != usize::MAX {
                    let distance = now.step + steps - self.uses[before].step;
                    self.uses[before].next = index;
                    self.uses[before].distance = if distance > steps { distance - steps } else { distance };
                    self.uses[index].previous = before;
                }
            }
        }
    }

    /// Total time of all steps.
    pub(super) fn busy_ns(&self) -> Nanos {
        self.steps.iter().map(|step| step.time_ns).sum()
    }

    /// A time that no holds can beat: that of the steps, or that of copying in each period what the device cannot keep.
    pub(super) fn bound_ns(&self) -> f64 {
        let mut used = vec![0u64; self.tensors];
        self.uses.iter().for_each(|each| used[each.tensor] = each.size_bytes);
        let copied = used.iter().sum::<u64>().saturating_sub(self.device.budget_bytes());
        (self.busy_ns() as f64).max(copied as f64 * 1e9 / self.device.bandwidth() as f64)
    }

    /// Whether the gap after `index` continues into the next period.
    pub(super) fn wraps(&self, index: usize) -> bool {
        self.uses[index].step + self.uses[index].distance >= self.steps.len()
    }
}
