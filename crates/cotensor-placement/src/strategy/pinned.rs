use super::strategy::{Move, Place, Strategy, View};
use crate::device::Device;
use crate::time::Nanos;
use crate::trace::{Operation, TensorIndex, Trace};

/// Keeps the first tensors of a trace on the device, as many as fit, and streams the others: each is copied while the
/// operation before it runs, and freed after its use.
#[derive(Debug)]
pub struct Pinned {
    pinned: Vec<bool>,
    operations: Vec<Operation>,
    /// The operation that waits or runs.
    at: usize,
    leaving: Vec<TensorIndex>,
}

impl Pinned {
    /// The strategy for a trace on a device.
    pub fn new(trace: &Trace, device: &Device) -> Self {
        let sizes = trace.sizes();
        let operations = trace.operations().to_vec();
        let need = |operation: &Operation, pinned: &[bool]| {
            let streamed = operation.uses.iter().filter(|&&tensor| !pinned[tensor]).map(|&tensor| sizes[tensor]);
            operation.workspace_bytes + streamed.sum::<u64>()
        };
        // The room for one operation and for the streamed tensors of the next.
        let mut pinned = vec![false; sizes.len()];
        let room = |pinned: &[bool]| {
            let needs = || operations.iter().map(|operation| need(operation, pinned));
            needs().zip(needs().cycle().skip(1)).map(|(this, next)| this + next).max().unwrap_or(0)
        };
        let mut used = 0;
        let mut reserved = room(&pinned);
        for tensor in operations.iter().flat_map(|operation| operation.uses.iter().copied()) {
            if std::mem::replace(&mut pinned[tensor], true) {
                continue;
            }
            if used + sizes[tensor] + reserved > device.budget_bytes() {
                // Fewer tensors are streamed if this one is not.
                reserved = room(&pinned);
            }
            if used + sizes[tensor] + reserved > device.budget_bytes() {
                pinned[tensor] = false;
                break;
            }
            used += sizes[tensor];
        }
        Self { pinned, operations, at: 0, leaving: Vec::new() }
    }
}

impl Strategy for Pinned {
    fn name(&self) -> &str {
        "pinned"
    }

    fn arrive(&mut self, operation: &Operation, _: &View<'_>) -> Place {
        let next = (0..self.operations.len()).map(|offset| (self.at + offset) % self.operations.len()).find(|&index| {
            self.operations[index].uses == operation.uses && self.operations[index].name == operation.name
        });
        self.at = next.unwrap_or(self.at);
        Place::Device
    }

    fn next_move(&mut self, view: &View<'_>) -> Option<Move> {
        while let Some(tensor) = self.leaving.pop() {
            if view.is_on_device(tensor) && !view.is_needed_now(tensor) {
                return Some(Move::Evict(tensor));
            }
        }
        if view.short_bytes() > 0 {
            // The budget is smaller than it was: streamed tensors leave first.
            let free = || view.on_device().filter(|&tensor| !view.is_needed_now(tensor));
            return free().find(|&tensor| !self.pinned[tensor]).or_else(|| free().last()).map(Move::Evict);
        }
        if view.is_copying() {
            return None;
        }
        if view.waiting().is_some() {
            return view.missing().filter(|&tensor| view.can_fetch(tensor)).map(Move::Fetch);
        }
        let next = &self.operations[(self.at + 1) % self.operations.len()];
        let tensor = next.uses.iter().copied().find(|&tensor| view.is_on_host(tensor))?;
        (view.sizes()[tensor] + next.workspace_bytes <= view.free_bytes()).then_some(Move::Fetch(tensor))
    }

    fn finished(&mut self, operation: &Operation, _: Nanos, _: &View<'_>) {
        self.at = (self.at + 1) % self.operations.len();
        self.leaving = operation.uses.iter().copied().filter(|&tensor| !self.pinned[tensor]).collect();
    }
}
