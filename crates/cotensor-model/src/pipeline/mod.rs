//! Pipelines: several users, each a model and a task, on the same input.

mod adapted;
mod attention;
pub mod decode;
mod embedding;
mod encoded;
mod explain;
mod generator;
mod host;
mod inputs;
mod logit_ranking;
mod opened;
mod rerank;
mod run;
mod streaming;
mod task;

pub use adapted::{ADAPTER, EncoderUse, Samples, SharedEmbedding, encode, encoder_of, fit_adapter, inputs_of};
pub(crate) use cotensor_pipeline::argmax;
pub use cotensor_pipeline::{
    Answer, Constant, EncoderOf, Object, Output, Pipeline, StageReport, User, UserReport, field_names, read_options,
};
pub use cotensor_preprocess::family::Medium;
pub use embedding::{EmbedderInput, TextEmbedder, TextEmbedding};
pub use encoded::{Encoded, RowParts};
pub use explain::{Explanation, StageUse, explain};
pub use generator::OnText;
pub use inputs::Inputs;
pub use opened::{default_task, model_of_encoder, model_of_user, open_pipeline, task_of_inputs};
pub use streaming::{StreamEvent, StreamSettings, StreamSummary, StreamingProcessor};
pub use task::{run_user, run_user_keeping, run_user_streaming};
