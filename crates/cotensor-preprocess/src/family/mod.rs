//! Model families and their tasks, read once from `families.toml`. A new family is a new table in that file.

mod config;
mod definition;
mod export;
mod form;
mod source;
mod tables;
mod task;
mod variant;

pub(crate) use config::scaled_positions;
pub use config::{CONFIG_FILE, ModelConfig};
pub use definition::{
    BlockFields, DecoderDef, EncoderFields, Family, ImageTokens, LOGITS, Probability, Similarity, StageDef, Variant,
};
pub use export::EXPORTER;
pub use source::{Medium, Source};
pub(crate) use tables::known_pooling;
pub use tables::{families, family_of, family_of_model, kinds_by_name, tasks, variant, variants};
pub use task::{AnswerKind, Task, TextLimit};
