//! OpenAI's API: requests below `/v1` are forwarded to the model process.

mod answer;
mod connections;
mod forward;
mod forwarder;

pub(super) use answer::openai_error;
pub(super) use forward::forward;
pub(super) use forwarder::Forwarder;

/// Whether a path is one of this API.
pub(super) fn is_below(path: &str) -> bool {
    path == "/v1" || path.starts_with("/v1/")
}
