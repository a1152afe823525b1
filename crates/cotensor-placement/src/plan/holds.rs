use super::problem::Problem;

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
        Self { periods, held: vec![false; periods * problem.uses.len()], load: Load::new(needs.collect()) }
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
        let (steps, gap) = (self.load.steps.len(), problem.uses[index % uses]);
        let from = index / uses * problem.steps.len() + gap.step + 1;
        let to = from + gap.distance - 1;
        if from >= steps {
            [(from - steps, to - steps), (0, 0)]
        } else {
            [(from, to.min(steps)), (0, to.saturating_sub(steps))]
        }
    }
}

/// Bytes per step. Blocks of steps make it fast to add to a range and to find the largest in a range.
#[derive(Clone, Debug)]
struct Load {
    /// Bytes of each step, without those added to its whole block.
    steps: Vec<u64>,
    blocks: Vec<Block>,
    /// Steps in a block.
    block: usize,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    /// Bytes added to every step of the block.
    added: u64,
    /// The largest of the steps, without `added`.
    largest: u64,
}

impl Load {
    fn new(steps: Vec<u64>) -> Self {
        let block = steps.len().isqrt().max(1);
        let largest = |steps: &[u64]| steps.iter().copied().max().unwrap_or(0);
        let blocks = steps.chunks(block).map(|steps| Block { added: 0, largest: largest(steps) }).collect();
        Self { steps, blocks, block }
    }

    fn values(&self) -> Vec<u64> {
        self.steps.iter().enumerate().map(|(step, bytes)| bytes + self.blocks[step / self.block].added).collect()
    }

    /// The blocks that `from..to` touches, each with its part of the range.
    fn pieces(&self, from: usize, to: usize) -> impl Iterator<Item = (usize, usize, usize)> + use<> {
        let block = self.block;
        let blocks = if from < to { from / block..to.div_ceil(block) } else { 0..0 };
        blocks.map(move |index| (index, from.max(index * block), to.min((index + 1) * block)))
    }

    /// The largest of the steps `from..to`; zero if there are none.
    fn max(&self, from: usize, to: usize) -> u64 {
        let of_piece = |(index, from, to): (usize, usize, usize)| {
            let Block { added, largest } = self.blocks[index];
            let whole = to - from == self.block;
            added + if whole { largest } else { self.steps[from..to].iter().copied().max().unwrap_or(0) }
        };
        self.pieces(from, to).map(of_piece).max().unwrap_or(0)
    }

    /// Adds `bytes` to the steps `from..to`.
    fn add(&mut self, from: usize, to: usize, bytes: i64) {
        for (index, from, to) in self.pieces(from, to) {
            if to - from == self.block {
                self.blocks[index].added = self.blocks[index].added.wrapping_add_signed(bytes);
                continue;
            }
            self.steps[from..to].iter_mut().for_each(|step| *step = step.wrapping_add_signed(bytes));
            let first = index * self.block;
            let end = (first + self.block).min(self.steps.len());
            self.blocks[index].largest = self.steps[first..end].iter().copied().max().unwrap_or(0);
        }
    }
}
