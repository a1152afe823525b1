//! The models that are loaded for embeddings and scores, by name.

mod batches;
mod table;

pub(crate) use table::ModelInfo;
pub use table::{LoadedModels, ServingOptions};
