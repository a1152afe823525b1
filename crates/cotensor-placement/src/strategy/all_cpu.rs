use super::strategy::{Move, Place, Strategy, View};
use crate::trace::Operation;

/// Runs every operation on the host.
#[derive(Debug, Default)]
pub struct AllCpu;

impl Strategy for AllCpu {
    fn name(&self) -> &str {
        "cpu"
    }

    fn arrive(&mut self, _: &Operation, _: &View<'_>) -> Place {
        Place::Cpu
    }

    fn next_move(&mut self, _: &View<'_>) -> Option<Move> {
        None
    }
}
