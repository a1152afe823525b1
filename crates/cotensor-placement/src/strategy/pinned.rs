use crate::decision::{Move, Place, Strategy, View};
use crate::device::Device;
use crate::time::Nanos;
use crate::trace::{Operation, TensorIndex, Trace};

/// Operations that are learned at most; the tensors of others are streamed.
const OPERATIONS_MAX: usize = 1 << 16;

/// Keeps the first tensors of a program on the device, as many as fit, and streams the others: each is copied while the
/// operation before it runs, and freed after its use.
///
/// The default value learns the operations as they arrive. It streams all tensors until an operation arrives again.
#[derive(Clone, Debug, Default)]
pub struct Pinned {
    pinned: Vec<bool>,
    /// The known operations, in the order of their first arrival, and their keys.
    operations: Vec<Operation>,
    keys: Vec<u64>,
    /// The operation that waits or runs.
    at: usize,
    leaving: Vec<TensorIndex>,
    /// Whether operations were added after the pinned tensors were chosen.
    learning: bool,
    /// Whether the device had no memory since the last operation arrived.
    failed: bool,
}

impl Pinned {
    /// The strategy for a trace on a device.
    pub fn new(trace: &Trace, device: &Device) -> Self {
        let mut pinned = Self::default();
        pinned.announce(trace.operations().to_vec());
        pinned.pin(&trace.sizes(), device.budget_bytes());
        pinned
    }

    /// Chooses the first tensors of the known operations that fit.
    fn pin(&mut self, sizes: &[u64], budget_bytes: u64) {
        self.learning = false;
        // Operations that do not fit run on the host.
        let fits = |operation: &&Operation| {
            let sizes: Option<Vec<u64>> = operation.uses.iter().map(|&tensor| sizes.get(tensor).copied()).collect();
            sizes.is_some_and(|sizes| operation.workspace_bytes + sizes.iter().sum::<u64>() <= budget_bytes)
        };
        let operations: Vec<&Operation> = self.operations.iter().filter(fits).collect();
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
            if used + sizes[tensor] + reserved > budget_bytes {
                // Fewer tensors are streamed if this one is not.
                reserved = room(&pinned);
            }
            if used + sizes[tensor] + reserved > budget_bytes {
                pinned[tensor] = false;
                break;
            }
            used += sizes[tensor];
        }
        self.pinned = pinned;
    }

    fn is_pinned(&self, tensor: TensorIndex) -> bool {
        self.pinned.get(tensor).copied().unwrap_or(false)
    }
}

impl Strategy for Pinned {
    fn name(&self) -> &str {
        "pinned"
    }

    fn arrive(&mut self, operation: &Operation, view: &View<'_>) -> Place {
        let (key, count) = (operation.key(), self.keys.len());
        self.failed = false;
        let next = (0..count).map(|offset| (self.at + offset) % count).find(|&index| self.keys[index] == key);
        if let Some(next) = next {
            self.at = next;
            if self.learning {
                self.pin(view.sizes(), view.budget_bytes());
            }
        } else if count < OPERATIONS_MAX {
            self.at = count;
            self.keys.push(key);
            self.operations.push(operation.clone());
            self.learning = true;
        }
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
            return free().find(|&tensor| !self.is_pinned(tensor)).or_else(|| free().last()).map(Move::Evict);
        }
        if view.is_copying() {
            return None;
        }
        if view.waiting().is_some() {
            return view.missing().filter(|&tensor| view.can_fetch(tensor)).map(Move::Fetch);
        }
        if self.learning || self.failed || self.operations.is_empty() {
            return None;
        }
        let next = &self.operations[(self.at + 1) % self.operations.len()];
        let tensor = next.uses.iter().copied().find(|&tensor| view.is_on_host(tensor))?;
        (view.sizes()[tensor] + next.workspace_bytes <= view.free_bytes()).then_some(Move::Fetch(tensor))
    }

    fn finished(&mut self, operation: &Operation, _: Nanos, _: &View<'_>) {
        self.at = (self.at + 1) % self.operations.len().max(1);
        self.leaving = operation.uses.iter().copied().filter(|&tensor| !self.is_pinned(tensor)).collect();
    }

    fn out_of_memory(&mut self, _: &View<'_>) {
        // The next copy ahead must not take the memory that the retry needs.
        self.failed = true;
    }

    fn budget_changed(&mut self, view: &View<'_>) {
        if !self.learning {
            self.pin(view.sizes(), view.budget_bytes());
        }
    }

    fn announce(&mut self, operations: Vec<Operation>) {
        self.keys = operations.iter().take(OPERATIONS_MAX).map(Operation::key).collect();
        self.operations = operations;
        self.operations.truncate(OPERATIONS_MAX);
        (self.at, self.learning) = (0, true);
    }
}
