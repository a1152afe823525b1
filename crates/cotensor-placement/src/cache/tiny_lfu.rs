use crate::trace::TensorIndex;
use std::collections::BTreeSet;

/// Uses per tensor after which all counts are halved, so that old uses count less.
const USES_PER_AGING: usize = 10;
const COUNT_MAX: u32 = 255;

/// Decides which tensor leaves a full device: one that came into a full device must have been used more often, for its
/// size, than the one that it would replace. So a loop over more tensors than fit keeps most of them, where a cache by
/// recency alone keeps none. After TinyLFU (Einziger, Friedman and Manes, 2017), with exact counts instead of a sketch.
#[derive(Debug, Default)]
pub(crate) struct TinyLfu {
    counts: Vec<u32>,
    uses: usize,
    /// Last use of each tensor; 0 if it is not admitted.
    stamps: Vec<u64>,
    clock: u64,
    admitted: BTreeSet<(u64, TensorIndex)>,
    /// Tensors that came while the device was full, oldest first.
    candidates: Vec<TensorIndex>,
}

impl TinyLfu {
    /// Counts a use of `tensor`, one of `tensors`.
    pub(crate) fn used(&mut self, tensor: TensorIndex, tensors: usize) {
        self.counts.resize(tensors.max(self.counts.len()), 0);
        self.stamps.resize(tensors.max(self.stamps.len()), 0);
        self.counts[tensor] = (self.counts[tensor] + 1).min(COUNT_MAX);
        self.uses += 1;
        if self.uses >= USES_PER_AGING * tensors {
            self.uses = 0;
            self.counts.iter_mut().for_each(|count| *count /= 2);
        }
        if self.stamps[tensor] != 0 {
            self.admit(tensor);
        }
    }

    /// Notes that `tensor` came to the device, and whether another one had to leave for it.
    pub(crate) fn came(&mut self, tensor: TensorIndex, was_full: bool) {
        if was_full {
            self.candidates.push(tensor);
        } else {
            self.admit(tensor);
        }
    }

    /// The tensor that should leave, among those that `may_leave` accepts; it is forgotten but for its count.
    pub(crate) fn victim(&mut self, sizes: &[u64], may_leave: impl Fn(TensorIndex) -> bool) -> Option<TensorIndex> {
        let candidate = self.candidates.iter().position(|&tensor| may_leave(tensor));
        let oldest = self.admitted.iter().map(|&(_, tensor)| tensor).find(|&tensor| may_leave(tensor));
        let (Some(at), Some(oldest)) = (candidate, oldest) else {
            let victim = candidate.map(|at| self.candidates[at]).or(oldest)?;
            self.forget(victim);
            return Some(victim);
        };
        let candidate = self.candidates[at];
        // Uses per byte, compared without a division.
        let value =
            |tensor: TensorIndex, other: TensorIndex| u128::from(self.counts[tensor]) * u128::from(sizes[other]);
        if value(candidate, oldest) > value(oldest, candidate) {
            self.forget(oldest);
            self.candidates.remove(at);
            self.admit(candidate);
            return Some(oldest);
        }
        self.forget(candidate);
        Some(candidate)
    }

    fn admit(&mut self, tensor: TensorIndex) {
        self.forget(tensor);
        self.clock += 1;
        self.stamps[tensor] = self.clock;
        self.admitted.insert((self.clock, tensor));
    }

    fn forget(&mut self, tensor: TensorIndex) {
        let stamp = std::mem::take(&mut self.stamps[tensor]);
        self.admitted.remove(&(stamp, tensor));
        self.candidates.retain(|&candidate| candidate != tensor);
    }
}
