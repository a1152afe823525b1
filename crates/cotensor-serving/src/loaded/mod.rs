//! The models that this process has loaded.

mod batches;
mod model;
mod table;

pub(crate) use model::{LoadedModel, ModelInfo, ModelKey, Score};
pub use table::{LoadedModels, ServingOptions};
