//! Pipelines: several users, each a model and a task, on the same input.

mod adapted;
mod answer;
mod attention;
pub mod decode;
mod default_task;
mod definition;
mod embedding;
mod explain;
mod image_tokens;
mod inputs;
mod logit_ranking;
mod objects;
mod outputs;
mod report;
mod rerank;
mod run;
mod similarity;
mod speech;
mod streaming;
mod task;
mod text;
mod text_runs;
mod vocabulary;
mod writing;

pub use adapted::{
    ADAPTER, Encoded, EncoderUse, Medium, RowParts, Samples, SharedEmbedding, encode, encoder_of, fit_adapter,
    inputs_of,
};
pub(crate) use answer::argmax;
pub use answer::{Answer, Object, Output};
pub use default_task::default_task;
pub use definition::{EncoderOf, Pipeline, User};
pub use embedding::{EmbedderInput, TextEmbedder, TextEmbedding};
pub use explain::{Explanation, StageUse, explain};
pub use inputs::Inputs;
pub use report::{Constant, StageReport, UserReport};
pub use streaming::{StreamEvent, StreamSettings, StreamSummary, StreamingProcessor};
pub use task::{run_user, run_user_keeping, run_user_streaming};
pub use writing::OnText;
