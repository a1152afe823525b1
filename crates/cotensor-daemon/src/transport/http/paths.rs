//! The paths that have endpoints.

use super::v1;
use cotensor_core::Error;

/// The endpoints, for errors.
pub(super) const ENDPOINTS: &str = "the endpoints are POST /v1/embeddings, /v1/rerank, /v1/score, /v2/rerank, /rerank and /embed, \
    GET /v1/models, POST /jsonrpc, DELETE /session, GET, PUT and DELETE /tensors/NAME, GET /health, /metrics, /openrpc.json and /";

/// Whether an endpoint, or a group of them, has this path.
pub(super) fn is_known(path: &str) -> bool {
    ["/", "/health", "/metrics", "/openrpc.json", "/jsonrpc", "/session"].contains(&path)
        || path.starts_with("/tensors/")
        || v1::serves(path)
}

/// The error for a path without an endpoint.
pub(super) fn nothing_at(path: &str) -> Error {
    Error::not_found(format!("there is nothing at {path}; {ENDPOINTS}"))
}
