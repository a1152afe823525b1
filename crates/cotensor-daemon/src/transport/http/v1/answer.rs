//! Errors in the form of OpenAI's API.

use crate::transport::http::answer::{Refusal, challenged, json};
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use cotensor_client::OpenAiError;

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
    let message = refusal.error().to_string();
    let mut response = challenged(json(status, &OpenAiError::new(status.as_u16(), &message, None, code)));
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}
