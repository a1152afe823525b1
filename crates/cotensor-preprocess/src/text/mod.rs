//! Texts: tokenization, and the pooling of hidden states to sentence embeddings.

mod pooling;
mod sentence;
mod tokenizer;

pub use pooling::normalized;
pub use sentence::SentenceProcessor;
pub use tokenizer::{TextProcessor, TokenBatch};
