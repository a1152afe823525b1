//! What the daemon says of itself: that it lives, what its methods are, and the page that shows it at work.

use super::Http;
use super::access::Trusted;
use super::answer::json;
use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use cotensor_client::protocol::{self, PROTOCOL};
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;

const PAGE: &str = include_str!("dashboard.html");

#[derive(Serialize)]
struct Health<'a> {
    status: &'static str,
    #[serde(flatten)]
    details: Option<Details<'a>>,
}

/// For those who may use the daemon.
#[derive(Serialize)]
struct Details<'a> {
    version: &'static str,
    protocol: u32,
    epoch: u64,
    pid: u32,
    /// A client on this machine that finds this path switches to it.
    socket: &'a Path,
}

/// That the daemon lives; and which one it is, for those who may use it.
pub(super) async fn health(State(http): State<Arc<Http>>, Extension(trusted): Extension<Trusted>) -> Response {
    let details = trusted.0.then(|| Details {
        version: env!("CARGO_PKG_VERSION"),
        protocol: PROTOCOL,
        epoch: http.daemon.epoch,
        pid: std::process::id(),
        socket: &http.daemon.config.socket,
    });
    json(StatusCode::OK, &Health { status: "ok", details })
}

/// The description of every method, and the functions that are provided.
pub(super) async fn openrpc(State(http): State<Arc<Http>>) -> Response {
    json(StatusCode::OK, &protocol::openrpc_with(&http.daemon.functions.list("")))
}

/// The page, which asks for its figures as any client does. Nothing but its own script runs in it.
pub(super) async fn page() -> Response {
    let mut nonce = [0; 16];
    if getrandom::fill(&mut nonce).is_err() {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    let nonce = cotensor_client::hex::encode(&nonce);
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let page = PAGE.replace("{{nonce}}", &nonce);
    ([(CONTENT_TYPE, "text/html; charset=utf-8".to_owned()), (CONTENT_SECURITY_POLICY, policy)], page).into_response()
}
