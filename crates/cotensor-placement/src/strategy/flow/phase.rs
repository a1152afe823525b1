use super::alternative::Alternative;
use crate::plan::Plan;
use crate::time::Nanos;
use crate::trace::{Operation, TensorIndex};
use std::collections::HashMap;

/// Weight of a new measurement of an operation's time: one in this many.
const SMOOTHING: Nanos = 4;
/// Weight of a pass in the share of passes that leave an operation out.
const PASS_WEIGHT: f32 = 1.0 / 8.0;
/// An operation that more than this share of the passes leaves out varies with the data.
const LEFT_OUT_MAX: f32 = 0.3;

/// A part of a program that recurs, such as one pass over the layers, and its plan.
#[derive(Clone, Debug)]
pub(super) struct Phase {
    pub(super) operations: Vec<Operation>,
    pub(super) keys: Vec<u64>,
    pub(super) plan: Plan,
    /// Followed instead of the plan, if it takes less time.
    pub(super) alternative: Option<Alternative>,
    /// The budget for which the plan was made, in bytes, with the share of tensors whose use varies.
    pub(super) budget: u64,
    /// The most operations that were seen between two of these. With 0, none is chosen by data.
    pub(super) gap: usize,
    /// The part of the budget for tensors whose use varies, in bytes.
    pub(super) share: u64,
    /// For each operation the share of recent passes that left it out.
    left_out: Vec<f32>,
    /// Time of all operations when the plan was made.
    planned_ns: Nanos,
    on_cpu: Vec<bool>,
    /// The first prefetch and the first eviction of each step of the cycle, and the ends.
    first_prefetch: Vec<usize>,
    first_eviction: Vec<usize>,
    /// The steps of a period that use each tensor.
    steps_of: HashMap<TensorIndex, Vec<usize>>,
}

impl Phase {
    pub(super) fn new(operations: Vec<Operation>, gap: usize, plan: Plan, budget: u64, share: u64) -> Self {
        let mut steps_of: HashMap<TensorIndex, Vec<usize>> = HashMap::new();
        for (step, operation) in operations.iter().enumerate() {
            operation.uses.iter().for_each(|&tensor| steps_of.entry(tensor).or_default().push(step));
        }
        let mut on_cpu = vec![false; operations.len()];
        plan.on_cpu.iter().for_each(|&operation| on_cpu[operation] = true);
        let first = |steps: &mut dyn Iterator<Item = usize>| {
            let mut first = vec![0; plan.steps() + 1];
            steps.for_each(|step| first[step + 1] += 1);
            (0..plan.steps()).for_each(|step| first[step + 1] += first[step]);
            first
        };
        Self {
            keys: operations.iter().map(Operation::key).collect(),
            planned_ns: total(&operations),
            first_prefetch: first(&mut plan.prefetches.iter().map(|copy| copy.step)),
            first_eviction: first(&mut plan.evictions.iter().map(|eviction| eviction.step)),
            on_cpu,
            steps_of,
            gap,
            share,
            left_out: vec![0.0; operations.len()],
            operations,
            plan,
            alternative: None,
            budget,
        }
    }

    /// Whether the operation at a step of the cycle runs on the host.
    pub(super) fn is_on_cpu(&self, step: usize) -> bool {
        self.on_cpu[step % self.operations.len()]
    }

    /// The position of the first prefetch for `step` of the cycle or a later step.
    pub(super) fn first_prefetch(&self, step: usize) -> usize {
        self.first_prefetch[step]
    }

    /// The tensors that leave after `step` of the cycle.
    pub(super) fn evicted_after(&self, step: usize) -> impl DoubleEndedIterator<Item = TensorIndex> {
        let range = self.first_eviction[step]..self.first_eviction[step + 1];
        self.plan.evictions[range].iter().map(|eviction| eviction.tensor)
    }

    /// Whether the phase has the tensor.
    pub(super) fn uses(&self, tensor: TensorIndex) -> bool {
        self.steps_of.contains_key(&tensor)
    }

    /// The program has come from `step` to `next` (both within the period), and left out the operations between.
    pub(super) fn passed(&mut self, step: usize, next: usize) {
        let count = self.operations.len();
        let left_out = (next + count - step) % count;
        // A program that starts again leaves nothing out.
        if left_out <= count / 2 {
            (0..left_out).for_each(|offset| self.left_out[(step + offset) % count] += PASS_WEIGHT);
        }
        self.left_out[next] *= 1.0 - PASS_WEIGHT;
    }

    /// The operations that recur, without those that many passes leave out; nothing if there are none of these. The first
    /// one stays.
    pub(super) fn without_varying(&self) -> Option<(Vec<Operation>, usize)> {
        let recurs = |&step: &usize| step == 0 || self.left_out[step] <= LEFT_OUT_MAX;
        let kept: Vec<Operation> =
            (0..self.operations.len()).filter(recurs).map(|step| self.operations[step].clone()).collect();
        let removed = self.operations.len() - kept.len();
        let is_phase = kept.iter().any(|operation| !operation.uses.is_empty());
        (removed > 0 && is_phase).then_some((kept, self.gap + removed))
    }

    /// Steps from `step` until the next use of a tensor; the largest number if the phase does not use it.
    pub(super) fn distance(&self, tensor: TensorIndex, step: usize) -> usize {
        let (steps, step) = (self.operations.len(), step % self.operations.len());
        let Some(uses) = self.steps_of.get(&tensor) else { return usize::MAX };
        let next = uses.partition_point(|&use_| use_ < step);
        uses.get(next).map_or_else(|| uses[0] + steps - step, |next| next - step)
    }

    /// The tensors that the plan holds on the device when `step` of the cycle begins.
    pub(super) fn held_at(&self, step: usize) -> Vec<TensorIndex> {
        let cycle = self.plan.steps();
        let mut seen: HashMap<TensorIndex, bool> = HashMap::new();
        for back in 1..=cycle {
            let at = (step + cycle - back) % cycle;
            if seen.len() == self.steps_of.len() {
                break;
            }
            let evicted: Vec<TensorIndex> = self.evicted_after(at).collect();
            if !self.is_on_cpu(at) {
                for tensor in &self.operations[at % self.operations.len()].uses {
                    seen.entry(*tensor).or_insert(!evicted.contains(tensor));
                }
            }
        }
        seen.into_iter().filter_map(|(tensor, held)| held.then_some(tensor)).collect()
    }

    /// Notes how long the operation at a step of the cycle took.
    pub(super) fn measured(&mut self, step: usize, elapsed_ns: Nanos) {
        let on_cpu = self.is_on_cpu(step);
        let count = self.operations.len();
        let operation = &mut self.operations[step % count];
        let smoothed = |before: Nanos| before - before / SMOOTHING + elapsed_ns / SMOOTHING;
        if on_cpu {
            operation.cpu_ns = operation.cpu_ns.map(smoothed);
        } else if operation.compute_ns != elapsed_ns {
            operation.compute_ns = smoothed(operation.compute_ns);
        }
    }

    /// Whether the measured times differ by more than a quarter from those of the plan.
    pub(super) fn is_outdated(&self) -> bool {
        total(&self.operations).abs_diff(self.planned_ns) > self.planned_ns / 4
    }
}

fn total(operations: &[Operation]) -> Nanos {
    operations.iter().map(|operation| operation.compute_ns).sum()
}
