//! Model families and their tasks, read once from `families.toml`. A new family is a new table in that file.

mod definition;
mod tables;
mod task;

pub use definition::{BlockFields, EncoderFields, Family, LOGITS, Probability, Similarity, StageDef};
pub use tables::{families, family_of, kinds_by_name, tasks};
pub use task::{AnswerKind, Task, TextLimit};
