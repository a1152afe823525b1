//! The decisions of a strategy, and what it sees for them.

use crate::memory::Memory;
use crate::time::Nanos;
use crate::trace::{Operation, TensorIndex};

/// Where an operation runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the device, as soon as its tensors are there.
    Device,
    /// On the host; possible if the operation has a time there.
    Cpu,
}

/// A decision to move a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// Start a copy to the device now. Its memory is taken at once.
    Fetch(TensorIndex),
    /// Free the device copy. If the device changed the tensor, it is copied to the host first.
    Evict(TensorIndex),
}

/// One operation that a strategy expects, with its moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Name of the operation.
    pub name: String,
    /// Its tensors.
    pub uses: Vec<TensorIndex>,
    /// Where it runs.
    pub place: Place,
    /// Tensors that are copied to the device for it.
    pub copied: Vec<TensorIndex>,
    /// Tensors that leave the device after it.
    pub evicted: Vec<TensorIndex>,
}

/// Decides for one program on one device. The caller runs the operations in their order.
///
/// For each operation the caller calls [`arrive`](Strategy::arrive), then [`next_move`](Strategy::next_move) whenever
/// something has changed, until it returns nothing. When all tensors of the operation have landed, it runs, and
/// `next_move` may start copies for later operations. Then the caller calls [`finished`](Strategy::finished).
pub trait Strategy {
    /// A short name in lower case.
    fn name(&self) -> &str;

    /// The program reaches `operation`. Returns where it runs.
    fn arrive(&mut self, operation: &Operation, view: &View<'_>) -> Place;

    /// The next move, or nothing for now. A copy to the device may only start while [`View::is_copying`] is false, and
    /// only into free memory. A tensor of a running operation must stay.
    fn next_move(&mut self, view: &View<'_>) -> Option<Move>;

    /// `operation` ran for `elapsed_ns`.
    fn finished(&mut self, operation: &Operation, elapsed_ns: Nanos, view: &View<'_>) {
        let _ = (operation, elapsed_ns, view);
    }

    /// The budget has changed. If it is smaller than the used memory, the next moves must evict.
    fn budget_changed(&mut self, view: &View<'_>) {
        let _ = view;
    }

    /// The device had no memory for the last copy or for the waiting operation. The next moves should evict; the caller
    /// tries again.
    fn out_of_memory(&mut self, view: &View<'_>) {
        let _ = view;
    }

    /// The next `count` operations with their tensors and moves, if the strategy knows them.
    fn forecast(&self, count: usize) -> Vec<Expected> {
        let _ = count;
        Vec::new()
    }

    /// Announces the period of the program before its first operation.
    fn announce(&mut self, operations: Vec<Operation>) {
        let _ = operations;
    }

    /// Number of periods after which the decisions repeat; 1 if unknown.
    fn cycle_periods(&self) -> usize {
        1
    }
}

/// What a strategy can see.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub(crate) memory: &'a Memory,
    pub(crate) sizes: &'a [u64],
    pub(crate) now_ns: Nanos,
    pub(crate) copying: bool,
    pub(crate) operation: Option<&'a Operation>,
    pub(crate) running: bool,
}

impl<'a> View<'a> {
    /// Size of each tensor, in bytes.
    pub fn sizes(&self) -> &'a [u64] {
        self.sizes
    }

    /// The clock.
    pub fn now_ns(&self) -> Nanos {
        self.now_ns
    }

    /// Memory that the program may use on the device, in bytes.
    pub fn budget_bytes(&self) -> u64 {
        self.memory.budget()
    }

    /// Budget without the used memory; zero while more than the budget is used.
    pub fn free_bytes(&self) -> u64 {
        self.memory.budget().saturating_sub(self.memory.used())
    }

    /// Whether a copy to the device is under way.
    pub fn is_copying(&self) -> bool {
        self.copying
    }

    /// Whether a tensor is on the device, landed.
    pub fn is_on_device(&self, tensor: TensorIndex) -> bool {
        self.memory.is_on_device(tensor)
    }

    /// Whether a tensor is on the host only: neither on the device nor on its way to it or from it.
    pub fn is_on_host(&self, tensor: TensorIndex) -> bool {
        self.memory.is_on_host(tensor)
    }

    /// Whether a tensor is being copied back to the host, or changed there by the running operation; it cannot be copied to
    /// the device before that ends.
    pub fn is_leaving(&self, tensor: TensorIndex) -> bool {
        self.memory.is_absent(tensor) && !self.memory.is_on_host(tensor)
    }

    /// The tensors on the device, in no order of time.
    pub fn on_device(&self) -> impl Iterator<Item = TensorIndex> + use<'a> {
        let memory = self.memory;
        (0..self.sizes.len()).filter(move |&tensor| memory.is_on_device(tensor))
    }

    /// The operation that waits for its tensors.
    pub fn waiting(&self) -> Option<&'a Operation> {
        self.operation.filter(|_| !self.running)
    }

    /// Whether `tensor` belongs to the operation that waits or runs on the device.
    pub fn is_needed_now(&self, tensor: TensorIndex) -> bool {
        self.operation.is_some_and(|operation| operation.uses.binary_search(&tensor).is_ok())
    }

    /// The first tensor of the waiting operation for which no copy has started.
    pub fn missing(&self) -> Option<TensorIndex> {
        self.waiting()?.uses.iter().copied().find(|&tensor| self.is_on_host(tensor))
    }

    /// Bytes that must be evicted before the waiting operation can have all its tensors and its workspace, beside those
    /// that are leaving already.
    pub fn short_bytes(&self) -> u64 {
        let needed = self.waiting().map_or(0, |operation| {
            let absent = operation.uses.iter().filter(|&&tensor| self.memory.is_absent(tensor));
            operation.workspace_bytes + absent.map(|&tensor| self.sizes[tensor]).sum::<u64>()
        });
        (self.memory.used() + needed).saturating_sub(self.memory.budget() + self.memory.leaving())
    }

    /// Whether a copy of the tensor to the device may start now.
    pub fn can_fetch(&self, tensor: TensorIndex) -> bool {
        !self.copying && self.is_on_host(tensor) && self.sizes[tensor] <= self.free_bytes()
    }
}
