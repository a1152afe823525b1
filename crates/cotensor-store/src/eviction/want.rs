//! The purposes for which memory is freed, and how often a reservation tries.

use crate::budget::Budget;
use std::time::Duration;

/// Attempts of a reservation while memory is leaving: more than a second in total.
#[cfg(not(target_family = "wasm"))]
pub(crate) const ROUNDS_MAX: u32 = 10_000;
/// With one thread, no other thread returns memory.
#[cfg(target_family = "wasm")]
pub(crate) const ROUNDS_MAX: u32 = 2;

/// For metadata, this fraction of the budget is freed at a time, at most [`METADATA_FREED_MAX`] bytes: with many
/// tensors the search for candidates is slow.
const METADATA_FREED_FRACTION: u64 = 256;
const METADATA_FREED_MAX: u64 = 256 << 10;

/// The purpose of the room.
#[derive(Clone, Copy)]
pub(crate) enum Want {
    /// Memory. Tensors of segments that stay go last, because they return only metadata.
    Memory,
    /// Memory for a spilled segment. Tensors that cannot be spilled stay: the caller swaps segments instead.
    Restored,
    /// Metadata of one more tensor.
    Metadata,
}

impl Want {
    /// The bytes to free in `budget` for a reservation of `bytes` bytes.
    pub(crate) fn goal(self, budget: &Budget, bytes: u64) -> u64 {
        match self {
            Self::Memory | Self::Restored => bytes,
            Self::Metadata => bytes.max(METADATA_FREED_MAX.min(budget.max() / METADATA_FREED_FRACTION)),
        }
    }
}

/// Lets other threads run; in early rounds for the shortest time.
pub(crate) fn pause(round: u32) {
    if round < 100 || cfg!(target_family = "wasm") {
        std::thread::yield_now();
    } else {
        std::thread::sleep(Duration::from_micros(100));
    }
}
