//! APIs for models: requests below `/v1`, and for some paths of other servers, are forwarded to the model process.

mod answer;
mod connections;
mod forward;

pub(super) use answer::openai_error;
pub(super) use forward::{Forwarder, forward};

/// The paths of other servers' APIs for models, beside those below `/v1`: of text-embeddings-inference and Cohere.
pub(super) const OTHER_PATHS: [&str; 3] = ["/embed", "/rerank", "/v2/rerank"];

/// Whether requests for a path go to the model process.
pub(super) fn serves(path: &str) -> bool {
    path == "/v1" || path.starts_with("/v1/") || OTHER_PATHS.contains(&path)
}
