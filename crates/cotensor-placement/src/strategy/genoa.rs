use crate::decision::{Move, Place, Strategy, View};
use crate::time::Nanos;
use crate::trace::{Operation, TensorIndex};

/// Copies tensors just before each operation and frees them right after it: the least memory and the most copies. Named
/// by torch.TensorRef.
#[derive(Clone, Debug, Default)]
pub struct Genoa {
    leaving: Vec<TensorIndex>,
}

impl Strategy for Genoa {
    fn name(&self) -> &str {
        "genoa"
    }

    fn arrive(&mut self, _: &Operation, _: &View<'_>) -> Place {
        Place::Device
    }

    fn next_move(&mut self, view: &View<'_>) -> Option<Move> {
        while let Some(tensor) = self.leaving.pop() {
            if view.is_on_device(tensor) {
                return Some(Move::Evict(tensor));
            }
        }
        view.missing().filter(|&tensor| view.can_fetch(tensor)).map(Move::Fetch)
    }

    fn finished(&mut self, operation: &Operation, _: Nanos, _: &View<'_>) {
        self.leaving.clone_from(&operation.uses);
    }

    fn out_of_memory(&mut self, view: &View<'_>) {
        self.leaving.extend(view.on_device().filter(|&tensor| !view.is_needed_now(tensor)));
    }
}
