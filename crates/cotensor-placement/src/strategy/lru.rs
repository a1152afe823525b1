use crate::decision::{Move, Place, Strategy, View};
use crate::time::Nanos;
use crate::trace::{Operation, TensorIndex};
use std::collections::{BTreeSet, HashMap};

/// Evicts the tensor that was not used for the longest time, and copies the tensors of the next operation while one
/// runs: the next is the one that followed the last time.
#[derive(Clone, Debug, Default)]
pub struct Lru {
    uses: u64,
    /// Last use of the tensors that may be on the device.
    last_use: HashMap<TensorIndex, u64>,
    by_age: BTreeSet<(u64, TensorIndex)>,
    /// For each operation the tensors and the workspace of the operation that followed it.
    followers: HashMap<u64, (Vec<TensorIndex>, u64)>,
    previous: Option<u64>,
    next: Vec<TensorIndex>,
    next_workspace: u64,
}

impl Lru {
    fn touch(&mut self, tensor: TensorIndex) {
        self.uses += 1;
        if let Some(last) = self.last_use.insert(tensor, self.uses) {
            self.by_age.remove(&(last, tensor));
        }
        self.by_age.insert((self.uses, tensor));
    }

    /// The oldest tensor that neither this operation nor the next one uses.
    fn oldest(&mut self, view: &View<'_>, spared: &[TensorIndex]) -> Option<TensorIndex> {
        let free = |&(_, tensor): &(u64, TensorIndex)| {
            view.is_on_device(tensor) && !view.is_needed_now(tensor) && !spared.contains(&tensor)
        };
        let &(last, tensor) = self.by_age.iter().find(|entry| free(entry))?;
        self.by_age.remove(&(last, tensor));
        self.last_use.remove(&tensor);
        Some(tensor)
    }
}

impl Strategy for Lru {
    fn name(&self) -> &str {
        "lru"
    }

    fn arrive(&mut self, operation: &Operation, _: &View<'_>) -> Place {
        operation.uses.iter().for_each(|&tensor| self.touch(tensor));
        let key = operation.key();
        if let Some(previous) = self.previous.replace(key) {
            self.followers.insert(previous, (operation.uses.clone(), operation.workspace_bytes));
        }
        (self.next, self.next_workspace) = self.followers.get(&key).cloned().unwrap_or_default();
        Place::Device
    }

    fn next_move(&mut self, view: &View<'_>) -> Option<Move> {
        if view.short_bytes() > 0 {
            return self.oldest(view, &[]).map(Move::Evict);
        }
        if view.is_copying() {
            return None;
        }
        if view.waiting().is_some() {
            return view.missing().filter(|&tensor| view.can_fetch(tensor)).map(Move::Fetch);
        }
        let tensor = self.next.iter().copied().find(|&tensor| view.is_on_host(tensor))?;
        if view.sizes()[tensor] + self.next_workspace <= view.free_bytes() {
            self.touch(tensor);
            return Some(Move::Fetch(tensor));
        }
        let next = std::mem::take(&mut self.next);
        let oldest = self.oldest(view, &next);
        self.next = next;
        oldest.map(Move::Evict)
    }

    fn finished(&mut self, _: &Operation, _: Nanos, _: &View<'_>) {}

    fn out_of_memory(&mut self, _: &View<'_>) {
        // The retry must not prefer the prefetch to the operation.
        self.next.clear();
    }
}
