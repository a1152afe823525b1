//! Answers outside JSON-RPC: a status, and an error in the form of JSON-RPC.

use axum::http::header::{CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use cotensor_core::{Error, ErrorKind};
use cotensor_rpc as rpc;

/// The answer to a refused request.
#[derive(Debug)]
pub(crate) struct Refusal {
    status: StatusCode,
    error: Error,
}

impl Refusal {
    /// The status of the answer.
    pub(super) fn status(&self) -> StatusCode {
        self.status
    }

    /// The error.
    pub(super) fn error(&self) -> &Error {
        &self.error
    }

    /// For a request that breaks a rule of HTTP.
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, error: Error::new(ErrorKind::Refused, message) }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let status = match error.kind() {
            ErrorKind::Invalid | ErrorKind::Corrupt => StatusCode::BAD_REQUEST,
            ErrorKind::NotFound => StatusCode::NOT_FOUND,
            ErrorKind::Conflict => StatusCode::CONFLICT,
            ErrorKind::OverBudget => StatusCode::INSUFFICIENT_STORAGE,
            ErrorKind::Refused => StatusCode::FORBIDDEN,
            ErrorKind::Unsupported => StatusCode::NOT_IMPLEMENTED,
            ErrorKind::TimedOut => StatusCode::GATEWAY_TIMEOUT,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self { status, error }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        #[derive(serde::Serialize)]
        struct Body {
            error: jsonrpsee_types::ErrorObjectOwned,
        }
        challenged(json(self.status, &Body { error: rpc::to_object(&self.error) }))
    }
}

/// Adds to an answer of status 401 how to authenticate.
pub(super) fn challenged(mut response: Response) -> Response {
    if response.status() == StatusCode::UNAUTHORIZED {
        let challenge = HeaderValue::from_static("Bearer realm=\"cotensor\"");
        response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    }
    response
}

/// An answer in JSON.
pub(crate) fn json(status: StatusCode, value: &impl serde::Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => (status, [(CONTENT_TYPE, "application/json")], body).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
