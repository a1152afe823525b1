//! The models that this process has loaded.

mod batches;
mod model;
mod table;

pub(crate) use model::{LoadedModel, ModelInfo, ModelKey};
pub use table::{LoadedModels, ServingOptions};
