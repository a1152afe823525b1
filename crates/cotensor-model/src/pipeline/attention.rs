//! The memory that attention needs, beside the memory that is left.

use crate::model::{Model, StageSource};
use cotensor_core::Result;
use cotensor_pipeline::AttentionMemory;

/// # Errors
/// `OverBudget` when this process has less memory left than `memory` needs.
pub(super) fn check_attention(memory: &AttentionMemory, model: &Model) -> Result<()> {
    let (Some(bytes), StageSource::Shared(loader)) = (memory.checked_bytes(), model.source()) else { return Ok(()) };
    loader.check_memory(bytes).map_err(|error| memory.explain(error))
}
