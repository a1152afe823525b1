use crate::TextsError;
use crate::loaded::in_words;
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use cotensor_client::OpenAiError;
use cotensor_core::{Error, ErrorKind};

/// Fields of requests that errors of models name.
const FIELDS: &[&str] = &["dimensions", "prompt_name", "truncate"];

/// An error in the form of OpenAI's endpoints.
#[derive(Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    message: String,
    param: Option<String>,
    code: Option<&'static str>,
}

impl ApiError {
    /// An error of the request; `param` names its field.
    pub(super) fn invalid(param: &str, message: impl Into<String>) -> Self {
        let param = (!param.is_empty()).then(|| param.to_owned());
        Self { status: StatusCode::BAD_REQUEST, message: message.into(), param, code: None }
    }

    pub(super) fn with_status(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, code: None }
    }

    /// Adds a text and a colon before the message.
    pub(super) fn prefixed(mut self, text: impl std::fmt::Display) -> Self {
        self.message = format!("{text}: {}", self.message);
        self
    }

    /// Adds a text after the message.
    pub(super) fn followed(mut self, text: &str) -> Self {
        self.message.push_str(text);
        self
    }

    /// An error of the model that the request names.
    pub(super) fn of_model(model: &str, error: &Error) -> Self {
        let (status, code) = match error.kind() {
            ErrorKind::NotFound => (StatusCode::NOT_FOUND, Some("model_not_found")),
            ErrorKind::Invalid | ErrorKind::Unsupported | ErrorKind::Corrupt => (StatusCode::BAD_REQUEST, None),
            ErrorKind::OverBudget => (StatusCode::SERVICE_UNAVAILABLE, Some("over_budget")),
            // Errors of the disk name a file; those of a download do not.
            ErrorKind::Io if error.file().is_none() => (StatusCode::BAD_GATEWAY, Some("hub_unreachable")),
            ErrorKind::Unreachable | ErrorKind::TimedOut => (StatusCode::BAD_GATEWAY, Some("hub_unreachable")),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, None),
        };
        let of_request = error.field().filter(|field| FIELDS.contains(field) && error.file().is_none());
        let param = of_request.or((status == StatusCode::NOT_FOUND).then_some("model")).map(str::to_owned);
        Self { status, message: format!("model {model:?}: {error}"), param, code }
    }

    /// An error of a request whose texts are the field `list`. That of one text has its position, and a status that clients do
    /// not repeat.
    pub(super) fn of_texts(model: &str, list: &str, failed: &TextsError) -> Self {
        let TextsError { text: Some(at), error } = failed else { return Self::of_model(model, &failed.error) };
        let (status, code) = match error.kind() {
            ErrorKind::OverBudget => (StatusCode::PAYLOAD_TOO_LARGE, Some("over_budget")),
            _ => (StatusCode::BAD_REQUEST, None),
        };
        let of_request = error.field().filter(|field| FIELDS.contains(field)).unwrap_or(list);
        let message = format!("model {model:?}: text {at} of {list}: {}", in_words(error));
        Self { status, message, param: Some(of_request.to_owned()), code }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let Self { status, message, param, code } = &self;
        (*status, Json(OpenAiError::new(status.as_u16(), message, param.as_deref(), *code))).into_response()
    }
}
