//! HTTP endpoints that tools already speak, on a Unix socket: the daemon forwards requests to it.
//!
//! | path | |
//! |---|---|
//! | `POST /v1/embeddings` | as OpenAI's: `model`, `input` (a text or a list), `encoding_format` (`float`, `base64`), `dimensions`; also `prompt_name` |
//! | `POST /v1/rerank`, `/rerank`, `/v2/rerank` | as Cohere's and Jina's: `model`, `query`, `documents`, `top_n`, `return_documents` |
//! | `POST /v1/score` | as vLLM's: `model`, `text_1`, `text_2` |
//! | `POST /embed`, `/rerank` | as those of text-embeddings-inference: `inputs`; `query` and `texts`. Without `model`, the only loaded model for it answers |
//! | `GET /v1/models`, `/v1/models/NAME` | the loaded models and those in the hub's cache, as OpenAI's |
//!
//! `POST /engine` with `{"libraries": [PATH]}` is the daemon's, which forwards no request to it: paths of onnxruntime, of the installations of
//! clients. The answer is the engine.
//!
//! Errors are OpenAI's: `{"error": {"message", "type", "param", "code"}}`.

mod embeddings;
mod engine;
mod error;
mod listing;
mod request;
mod rerank;
mod score;
mod server;

pub use server::serve;
