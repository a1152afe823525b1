//! What the daemon tells everyone, what its methods are, and the page that shows it at work.

use super::Http;
use super::admission::Peer;
use super::answer::json;
use axum::Extension;
use axum::extract::{RawQuery, State};
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, REFERRER_POLICY};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use cotensor_client::protocol::{self, PROTOCOL};
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;

const PAGE: &str = include_str!("dashboard.html");

/// What everyone may know, other users of this machine included.
#[derive(Serialize)]
struct Health<'a> {
    status: &'static str,
    version: &'static str,
    protocol: u32,
    /// A client on this machine that finds this path switches to it.
    socket: &'a Path,
}

/// That the daemon lives, and where its socket is.
pub(super) async fn health(State(http): State<Arc<Http>>) -> Response {
    let socket = &http.daemon.config.socket;
    let version = env!("CARGO_PKG_VERSION");
    json(StatusCode::OK, &Health { status: "ok", version, protocol: PROTOCOL, socket })
}

/// The description of every method, and the functions that are provided.
pub(super) async fn openrpc(State(http): State<Arc<Http>>) -> Response {
    json(StatusCode::OK, &protocol::openrpc_with(&http.daemon.functions.list("")))
}

/// The page, which asks for its figures as any client does. Nothing but its own script runs in it. Opened with a code that
/// [`Dashboard`](super::Dashboard) made, it has the token in it.
pub(super) async fn page(
    State(http): State<Arc<Http>>,
    Extension(peer): Extension<Peer>,
    method: Method,
    RawQuery(query): RawQuery,
) -> Response {
    let mut nonce = [0; 16];
    if getrandom::fill(&mut nonce).is_err() {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    let nonce = cotensor_client::hex::encode(&nonce);
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let code = query.as_deref().and_then(|query| query.strip_prefix("code="));
    // A HEAD would use the code up and bring no token.
    let code = code.filter(|_| method == Method::GET && http.access.allows(&peer));
    let token = code.and_then(|code| http.dashboard.redeem(code)).unwrap_or_default();
    let page = PAGE.replace("{{nonce}}", &nonce).replace("{{token}}", &escaped(token));
    let headers: [(HeaderName, &str); 3] = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, &policy),
        (REFERRER_POLICY, "no-referrer"),
    ];
    (headers, page).into_response()
}

/// Text as the value of an attribute.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;")
}
