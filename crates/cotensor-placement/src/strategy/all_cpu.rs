use crate::decision::{Move, Place, Strategy, View};
use crate::trace::Operation;

/// Runs every operation on the host.
#[derive(Clone, Debug, Default)]
pub struct AllCpu;

impl Strategy for AllCpu {
    fn name(&self) -> &str {
        "cpu"
    }

    fn arrive(&mut self, operation: &Operation, _: &View<'_>) -> Place {
        // An operation that another device runs has no time on the host.
        if operation.cpu_ns.is_some() { Place::Cpu } else { Place::Device }
    }

    fn next_move(&mut self, _: &View<'_>) -> Option<Move> {
        None
    }
}
