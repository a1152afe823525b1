use super::problem::Problem;
use crate::time::Nanos;

/// The gaps in which tensors are held, over a cycle of one or more periods, and the memory that this needs.
#[derive(Clone, Debug)]
pub(super) struct Holds {
    /// Number of periods after which the holds repeat.
    pub(super) periods: usize,
    /// One flag per use of the cycle: whether the tensor is held until its next use.
    held: Vec<bool>,
    load: Load,
}

impl Holds {
    /// No holds: every use of a cycle of `periods` periods needs a copy.
    pub(super) fn none(problem: &Problem, periods: usize) -> Self {
        let needs = (0..periods).flat_map(|_| problem.steps.iter().map(|step| step.need_bytes));
        Self { periods, held: vec![false; periods * problem.uses.len()], load: Load::new(&needs.collect::<Vec<_>>()) }
    }

    /// The same holds, in a cycle that is `times` as long.
    pub(super) fn repeated(&self, problem: &Problem, times: usize) -> Self {
        let mut repeated = Self::none(problem, self.periods * times);
        for index in (0..repeated.uses()).filter(|index| self.held[index % self.held.len()]) {
            repeated.try_hold(problem, index, u64::MAX);
        }
        repeated
    }

    /// Whether the tensor is held after use `index` of the cycle.
    pub(super) fn is_held(&self, index: usize) -> bool {
        self.held[index]
    }

    /// Number of uses in the cycle.
    pub(super) fn uses(&self) -> usize {
        self.held.len()
    }

    /// Whether the tensor is on the device since its previous use when use `index` of the cycle comes.
    pub(super) fn arrives_held(&self, problem: &Problem, index: usize) -> bool {
        let uses = problem.uses.len();
        let (period, previous) = (index / uses, problem.uses[index % uses].previous);
        let period = if problem.wraps(previous) { (period + self.periods - 1) % self.periods } else { period };
        self.held[period * uses + previous]
    }

    /// Time of the copies to the device that the holds leave, as the mean of one period.
    pub(super) fn copying_ns(&self, problem: &Problem) -> f64 {
        // Each gap without a hold ends with a copy.
        let copied = (0..self.uses()).filter(|&index| !self.held[index]);
        let copying: Nanos = copied.map(|index| problem.uses[index % problem.uses.len()].copy_ns).sum();
        copying as f64 / self.periods as f64
    }

    /// Holds the tensor after use `index` if no step of the gap then needs more than `limit` bytes.
    pub(super) fn try_hold(&mut self, problem: &Problem, index: usize, limit: u64) -> bool {
        let size = problem.uses[index % problem.uses.len()].size_bytes;
        let parts = self.gap(problem, index);
        if self.held[index] || parts.iter().any(|&(from, to)| self.load.max(from, to).saturating_add(size) > limit) {
            return false;
        }
        self.held[index] = true;
        parts.iter().for_each(|&(from, to)| self.load.add(from, to, size as i64));
        true
    }

    /// Ends the hold after use `index`.
    pub(super) fn release(&mut self, problem: &Problem, index: usize) {
        if std::mem::replace(&mut self.held[index], false) {
            let size = problem.uses[index % problem.uses.len()].size_bytes;
            for (from, to) in self.gap(problem, index) {
                self.load.add(from, to, -(size as i64));
            }
        }
    }

    /// Bytes that each step of the cycle needs: its tensors, its workspace and the held tensors.
    pub(super) fn loads(&self) -> Vec<u64> {
        self.load.values()
    }

    /// The steps strictly between use `index` and the next use, as up to two ranges of the cycle.
    fn gap(&self, problem: &Problem, index: usize) -> [(usize, usize); 2] {
        let uses = problem.uses.len();
        let (steps, gap) = (self.load.steps, problem.uses[index % uses]);
        let from = index / uses * problem.steps.len() + gap.step + 1;
        let to = from + gap.distance - 1;
        if from >= steps {
            [(from - steps, to - steps), (0, 0)]
        } else {
            [(from, to.min(steps)), (0, to.saturating_sub(steps))]
        }
    }
}

/// Bytes per step, as a binary tree over the steps: adding to a range of n steps, and the largest of a range, take O(log n).
#[derive(Clone, Debug)]
struct Load {
    /// The root is node 1, the children of node i are 2 i and 2 i + 1, and the second half has the steps.
    nodes: Vec<Node>,
    steps: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Node {
    /// The largest of its steps, without bytes added to a whole node above it.
    largest: u64,
    /// Bytes added to all of its steps.
    added: u64,
}

impl Load {
    fn new(steps: &[u64]) -> Self {
        let leaves = steps.len().next_power_of_two();
        let mut nodes = vec![Node::default(); 2 * leaves];
        for (node, &bytes) in nodes[leaves..].iter_mut().zip(steps) {
            node.largest = bytes;
        }
        let mut load = Self { nodes, steps: steps.len() };
        (1..leaves).rev().for_each(|node| load.update(node));
        load
    }

    /// The bytes of each step.
    fn values(&self) -> Vec<u64> {
        let leaves = self.nodes.len() / 2;
        let mut above = vec![0; self.nodes.len()];
        for node in 1..leaves {
            let added = above[node] + self.nodes[node].added;
            above[2 * node] = added;
            above[2 * node + 1] = added;
        }
        (leaves..leaves + self.steps).map(|leaf| self.nodes[leaf].largest + above[leaf]).collect()
    }

    /// The largest of the steps `from..to`; zero if there are none.
    fn max(&self, from: usize, to: usize) -> u64 {
        if from >= to {
            return 0;
        }
        let nodes = &self.nodes;
        let (mut left, mut right) = (from + nodes.len() / 2, to - 1 + nodes.len() / 2);
        // The largest of the range below `left`, and of that below `right`.
        let (mut low, mut high) = (nodes[left].largest, nodes[right].largest);
        while left / 2 != right / 2 {
            if left.is_multiple_of(2) {
                low = low.max(nodes[left + 1].largest);
            }
            if !right.is_multiple_of(2) {
                high = high.max(nodes[right - 1].largest);
            }
            (left, right) = (left / 2, right / 2);
            low += nodes[left].added;
            high += nodes[right].added;
        }
        let mut largest = low.max(high);
        while left > 1 {
            left /= 2;
            largest += nodes[left].added;
        }
        largest
    }

    /// Adds `bytes` to the steps `from..to`.
    fn add(&mut self, from: usize, to: usize, bytes: i64) {
        if from >= to {
            return;
        }
        let half = self.nodes.len() / 2;
        let (mut left, mut right) = (from + half, to - 1 + half);
        self.add_to(left, bytes);
        if left != right {
            self.add_to(right, bytes);
        }
        while left / 2 != right / 2 {
            if left.is_multiple_of(2) {
                self.add_to(left + 1, bytes);
            }
            if !right.is_multiple_of(2) {
                self.add_to(right - 1, bytes);
            }
            (left, right) = (left / 2, right / 2);
            self.update(left);
            self.update(right);
        }
        while left > 1 {
            left /= 2;
            self.update(left);
        }
    }

    /// Adds `bytes` to all steps of a node.
    fn add_to(&mut self, node: usize, bytes: i64) {
        let node = &mut self.nodes[node];
        node.largest = node.largest.wrapping_add_signed(bytes);
        node.added = node.added.wrapping_add_signed(bytes);
    }

    /// Finds the largest of a node again, after its children have changed.
    fn update(&mut self, node: usize) {
        let below = self.nodes[2 * node].largest.max(self.nodes[2 * node + 1].largest);
        self.nodes[node].largest = below + self.nodes[node].added;
    }
}
