use crate::cache::Blend;
use crate::decision::View;
use crate::device::Device;
use crate::time::Nanos;
use crate::trace::{Operation, TensorIndex};
use std::collections::VecDeque;

/// Uses that are remembered, to divide the memory by them.
const HISTORY_MAX: usize = 1 << 14;

/// The tensors whose use varies with the data, and the share of the budget that they have beside the planned ones.
#[derive(Debug)]
pub(super) struct Varying {
    is_varying: Vec<bool>,
    cache: Blend,
    share_bytes: u64,
    /// The last uses, oldest first, and for each the pass of the program in which it was.
    history: VecDeque<(TensorIndex, usize)>,
    /// Passes that have begun.
    passes: usize,
    /// Memory that the largest operation needs, in bytes.
    largest_bytes: u64,
}

impl Default for Varying {
    fn default() -> Self {
        Self {
            is_varying: Vec::new(),
            cache: Blend::new(0),
            share_bytes: 0,
            history: VecDeque::new(),
            passes: 0,
            largest_bytes: 0,
        }
    }
}

impl Varying {
    pub(super) fn contains(&self, tensor: TensorIndex) -> bool {
        self.is_varying.get(tensor).is_some_and(|&varying| varying)
    }

    /// An operation that is chosen by data arrives. Those of its tensors that no plan has, as `is_planned` tells, vary.
    pub(super) fn used(&mut self, operation: &Operation, sizes: &[u64], is_planned: impl Fn(TensorIndex) -> bool) {
        self.is_varying.resize(sizes.len().max(self.is_varying.len()), false);
        let bytes: u64 = operation.uses.iter().map(|&tensor| sizes[tensor]).sum();
        self.largest_bytes = self.largest_bytes.max(bytes + operation.workspace_bytes);
        for &tensor in operation.uses.iter().filter(|&&tensor| !is_planned(tensor)) {
            self.is_varying[tensor] = true;
            if self.history.len() == HISTORY_MAX {
                self.history.pop_front();
            }
            self.history.push_back((tensor, self.passes));
            self.cache.used(tensor, sizes[tensor]);
        }
    }

    /// The tensor belongs to a plan from now on.
    pub(super) fn planned(&mut self, tensor: TensorIndex) {
        if let Some(varying) = self.is_varying.get_mut(tensor) {
            *varying = false;
        }
    }

    /// Memory that the largest operation needs, in bytes; the share is at least that.
    pub(super) fn largest_bytes(&self) -> u64 {
        self.largest_bytes
    }

    /// A pass of the program begins. Returns how many have begun.
    pub(super) fn pass(&mut self) -> usize {
        self.passes += 1;
        self.passes
    }

    /// The time of the copies in a pass, as mean of the remembered passes, if the share were `share_bytes`.
    pub(super) fn copy_ns(&self, share_bytes: u64, sizes: &[u64], device: &Device) -> Nanos {
        let mut cache = Blend::new(share_bytes);
        // The first half fills the cache.
        let half = self.history.len() / 2;
        let mut time = 0;
        for (index, &(tensor, _)) in self.history.iter().enumerate() {
            if index >= half && !cache.contains(tensor) {
                time += device.copy_ns(sizes[tensor]);
            }
            cache.used(tensor, sizes[tensor]);
        }
        let first = self.history.get(half).map_or(0, |&(_, pass)| pass);
        let last = self.history.back().map_or(0, |&(_, pass)| pass);
        time / (last + 1 - first) as Nanos
    }

    /// Changes the share.
    pub(super) fn share(&mut self, share_bytes: u64, sizes: &[u64]) {
        if share_bytes != self.share_bytes {
            self.share_bytes = share_bytes;
            self.cache = Blend::new(share_bytes);
            self.history.iter().for_each(|&(tensor, _)| drop(self.cache.used(tensor, sizes[tensor])));
        }
    }

    /// The tensor on the device that should leave for another one that varies.
    pub(super) fn victim(&self, view: &View<'_>) -> Option<TensorIndex> {
        self.cache.least(view.on_device().filter(|&tensor| self.contains(tensor) && !view.is_needed_now(tensor)))
    }

    /// Whether the tensors on the device, with what the waiting operation needs, take more than their share.
    pub(super) fn is_over(&self, view: &View<'_>) -> bool {
        let bytes = |tensor: TensorIndex| if self.contains(tensor) { view.sizes()[tensor] } else { 0 };
        let held: u64 = view.on_device().map(bytes).sum();
        let needed = view.waiting().map_or(0, |operation| {
            let absent: u64 =
                operation.uses.iter().filter(|&&tensor| view.is_on_host(tensor)).map(|&tensor| bytes(tensor)).sum();
            let varies = operation.uses.iter().any(|&tensor| self.contains(tensor));
            absent + if varies { operation.workspace_bytes } else { 0 }
        });
        held + needed > self.share_bytes
    }
}
