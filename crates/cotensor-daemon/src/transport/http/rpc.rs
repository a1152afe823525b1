//! JSON-RPC by POST: the same methods as on the Unix socket, less those that pass descriptors.

use super::answer::Refusal;
use super::body::ReadBody;
use super::context::Http;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use cotensor_rpc::Frame;
use std::sync::Arc;

/// Answers a single call or a batch; 204 when all of it is notifications.
pub(super) async fn call(State(http): State<Arc<Http>>, headers: HeaderMap, body: Body) -> Result<Response, Refusal> {
    // A page of another site can send a form without asking first, but not this.
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if !kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json")) {
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "calls are application/json"));
    }
    let ReadBody { bytes, memory: _until_answered } =
        http.calls.read(body, http.config.call_bytes_max, http.config.message_timeout).await?;
    let mut call = http.sessions.call(&http.daemon, &headers)?;
    let answering = http.methods.answer(&http.daemon, &call.session, Frame::new(bytes));
    let answer = tokio::time::timeout(http.config.request_time_max, answering)
        .await
        .map_err(|_| Refusal::new(StatusCode::GATEWAY_TIMEOUT, "this took longer than a call may"))?;
    call.keep_after_hello(http.config.sessions_max)?;
    Ok(match answer {
        Some(body) => ([(CONTENT_TYPE, "application/json")], body).into_response(),
        None => StatusCode::NO_CONTENT.into_response(),
    })
}
