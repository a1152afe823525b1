//! Health, method descriptions and the dashboard page.

use super::admission::Peer;
use super::answer::json;
use super::context::Http;
use axum::Extension;
use axum::extract::{RawQuery, State};
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, REFERRER_POLICY};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use cotensor_client::protocol::{self, PROTOCOL};
use cotensor_memory::process::random_bytes;
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;

const PAGE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/style.css");
const SCRIPT: &str = include_str!("page/script.js");

/// Public information: other users of this machine can read it.
#[derive(Serialize)]
struct Health<'a> {
    status: &'static str,
    version: &'static str,
    protocol: u32,
    /// A client on this machine that finds this path switches to it.
    socket: &'a Path,
}

/// Health and the path of the socket.
pub(super) async fn health(State(http): State<Arc<Http>>) -> Response {
    let socket = &http.daemon.config.socket;
    let version = env!("CARGO_PKG_VERSION");
    json(StatusCode::OK, &Health { status: "ok", version, protocol: PROTOCOL, socket })
}

/// The descriptions of all methods and functions.
pub(super) async fn openrpc(State(http): State<Arc<Http>>) -> Response {
    json(StatusCode::OK, &protocol::openrpc_with(&http.daemon.functions.list("")))
}

/// The page. Its own script, the only one that may run in it, calls the daemon as any client. Opened with a code of
/// [`Dashboard`](super::Dashboard), the page contains the token.
pub(super) async fn page(
    State(http): State<Arc<Http>>,
    Extension(peer): Extension<Peer>,
    method: Method,
    RawQuery(query): RawQuery,
) -> Response {
    let Ok(nonce) = random_bytes::<16>() else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let nonce = cotensor_client::hex::encode(&nonce);
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let code = query.as_deref().and_then(|query| query.strip_prefix("code="));
    // A HEAD request would use up the code without delivering the token.
    let code = code.filter(|_| method == Method::GET && http.access.allows(&peer));
    let token = code.and_then(|code| http.dashboard.redeem(code)).unwrap_or_default();
    let page = PAGE.replace("{{nonce}}", &nonce).replace("{{token}}", &escaped(token));
    let page = page.replace("{{style}}", STYLE).replace("{{script}}", SCRIPT);
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
