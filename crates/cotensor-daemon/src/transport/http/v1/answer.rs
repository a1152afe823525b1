//! Errors in the form of OpenAI's API.

use crate::transport::http::answer::{Refusal, challenged, json};
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use serde::Serialize;

#[derive(Serialize)]
struct Body {
    error: ApiError,
}

#[derive(Serialize)]
struct ApiError {
    message: String,
    r#type: &'static str,
    param: Option<&'static str>,
    code: Option<&'static str>,
}

/// The answer for a refusal. Clients repeat requests with status 503 after a second.
pub(in crate::transport::http) fn openai_error(refusal: &Refusal) -> Response {
    let status = refusal.status();
    let code = match status {
        StatusCode::UNAUTHORIZED => Some("invalid_api_key"),
        StatusCode::FORBIDDEN => Some("access_denied"),
        StatusCode::NOT_FOUND => Some("no_models_served"),
        StatusCode::REQUEST_TIMEOUT | StatusCode::GATEWAY_TIMEOUT => Some("timeout"),
        StatusCode::PAYLOAD_TOO_LARGE => Some("request_too_large"),
        StatusCode::UNSUPPORTED_MEDIA_TYPE => Some("unsupported_media_type"),
        StatusCode::BAD_GATEWAY => Some("model_process_ended"),
        StatusCode::SERVICE_UNAVAILABLE => Some("unavailable"),
        _ => None,
    };
    let r#type = if status.is_server_error() { "server_error" } else { "invalid_request_error" };
    let error = ApiError { message: refusal.error().to_string(), r#type, param: None, code };
    let mut response = challenged(json(status, &Body { error }));
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}
