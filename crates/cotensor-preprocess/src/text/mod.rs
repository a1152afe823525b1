//! Texts: tokenization, chat templates, the pooling of hidden states to sentence embeddings, the scores of cross-encoders, and
//! the text of connectionist temporal classification.

mod chat;
mod ctc;
mod dense;
mod fields;
mod growth;
mod known_pooling;
mod logit_score;
mod module_list;
mod modules;
mod pooling;
mod positions;
mod score;
mod sentence;
mod stream;
mod tokenizer;
mod transformer;

pub use chat::ChatTemplate;
pub use ctc::CtcDecoder;
pub use logit_score::LogitScore;
pub use pooling::normalized;
pub use positions::{position_limit, positions_depend_on_length};
pub use score::ScoreFunction;
pub use sentence::SentenceProcessor;
pub use stream::TextStream;
pub use tokenizer::{TextProcessor, TextTokens, TokenBatch};
