//! HTTP: JSON-RPC by POST, bytes of tensors, health, metrics and the dashboard.
//!
//! | path | |
//! |---|---|
//! | `POST /jsonrpc` | calls and batches; the header `Cotensor-Session` names a session that `session.hello` opened |
//! | `DELETE /session` | ends that session |
//! | `GET`, `PUT`, `DELETE /tensors/NAME` | a tensor's bytes, with ranges; `PUT` takes `?dtype=float32&shape=2,3`, `GET` `?format=npy` |
//! | `GET /health` | version, protocol and Unix socket |
//! | `/v1/…`, `/embed`, `/rerank`, `/v2/rerank` | APIs of OpenAI and others, forwarded to the model process |
//! | `GET /metrics` | counters for Prometheus |
//! | `GET /openrpc.json` | the OpenRPC document, as `rpc.discover` |
//! | `GET /` | the dashboard |
//!
//! Every request except `GET /health` and `GET /` needs the token; see [`HttpConfig`]. A second token is good for the paths of
//! models only. Any other path is 404.

mod about;
mod access;
mod admission;
mod answer;
mod body;
mod config;
mod context;
mod dashboard;
mod listening;
mod metrics;
mod min_rate;
mod on_request;
mod paths;
mod peer;
mod range;
mod rpc;
mod server;
mod sessions;
mod socket_diag;
mod tensors;
#[cfg(test)]
mod tests;
mod token;
mod turned_away;
mod unread;
mod v1;

pub use config::HttpConfig;
pub use cotensor_client::{PORT, default_port};
pub use listening::HttpListening;
pub(crate) use on_request::start_http;
