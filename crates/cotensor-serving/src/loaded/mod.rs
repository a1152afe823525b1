//! The models that this process has loaded.
//! `table.rs` decides which are kept and unloaded.

mod batches;
mod embed;
mod model;
mod table;

pub(crate) use embed::in_words;
pub use embed::{EmbedOptions, Embedded, TextsError};
pub(crate) use model::{LoadedModel, ModelInfo, ModelKey, Score};
pub use table::{LoadedModels, ServingOptions};
