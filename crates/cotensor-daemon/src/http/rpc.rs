//! JSON-RPC by POST: the same methods as on the Unix socket, less those that pass descriptors.

use super::answer::Refusal;
use super::context::Http;
use super::paced::time_for;
use crate::dispatch::Methods;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use cotensor_rpc::Frame;
use http_body_util::BodyExt;
use hyper::body::Body as _;
use std::sync::Arc;
use tokio::time::Instant;

/// Answers a single call or a batch; 204 when all of it is notifications.
pub(super) async fn call(State(http): State<Arc<Http>>, headers: HeaderMap, body: Body) -> Result<Response, Refusal> {
    // A page of another site can send a form without asking first, but not this.
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if !kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json")) {
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "calls are application/json"));
    }
    let body = read(&http, body).await?;
    let mut call = http.sessions.call(&http.daemon, &headers)?;
    let answering = Methods::answer(&http.daemon, &call.session, Frame::new(body));
    let answer = tokio::time::timeout(http.config.request_time_max, answering)
        .await
        .map_err(|_| Refusal::new(StatusCode::GATEWAY_TIMEOUT, "this took longer than a call may"))?;
    call.keep_after_hello(http.config.sessions_max)?;
    Ok(match answer {
        Some(body) => ([(CONTENT_TYPE, "application/json")], body).into_response(),
        None => StatusCode::NO_CONTENT.into_response(),
    })
}

/// All of a request's body, which has to come in time and in bounds.
async fn read(http: &Http, mut body: Body) -> Result<Vec<u8>, Refusal> {
    let max = http.config.call_bytes_max;
    let too_large = || Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, format!("a message has at most {max} bytes"));
    if body.size_hint().lower() > max as u64 {
        return Err(too_large());
    }
    let start = Instant::now();
    let mut whole = Vec::new();
    while let Some(part) = next(&mut body, start + http.config.message_timeout + time_for(whole.len() as u64)).await? {
        if whole.len() + part.len() > max {
            return Err(too_large());
        }
        whole.extend_from_slice(&part);
    }
    Ok(whole)
}

/// The next piece of a body; none at its end.
pub(super) async fn next(body: &mut Body, until: Instant) -> Result<Option<Bytes>, Refusal> {
    loop {
        let frame = tokio::time::timeout_at(until, body.frame())
            .await
            .map_err(|_| Refusal::new(StatusCode::REQUEST_TIMEOUT, "the rest of the body did not come in time"))?;
        match frame {
            None => return Ok(None),
            Some(Err(_)) => return Err(Refusal::new(StatusCode::BAD_REQUEST, "the body ended before its length")),
            // Trailers say nothing here.
            Some(Ok(frame)) => match frame.into_data() {
                Ok(part) => return Ok(Some(part)),
                Err(_) => continue,
            },
        }
    }
}
