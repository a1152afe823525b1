use super::error::ApiError;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::http::StatusCode;
use serde_json::{Map, Value};

/// The most bytes of a model's name.
const NAME_BYTES_MAX: usize = 4096;

/// The fields of a request's JSON object. Unknown fields are ignored, because clients send fields of their own; those that
/// would change numbers are refused by name.
pub(super) struct Fields(Map<String, Value>);

impl Fields {
    /// # Errors
    /// For a body that is too long or no JSON object.
    pub(super) fn of(body: Result<Bytes, BytesRejection>) -> Result<Self, ApiError> {
        let body = body.map_err(|error| ApiError::with_status(error.status(), error.body_text()))?;
        match serde_json::from_slice(&body) {
            Ok(Value::Object(fields)) => Ok(Self(fields)),
            Ok(_) => Err(ApiError::invalid("", "the body is no JSON object")),
            Err(error) => Err(ApiError::with_status(StatusCode::BAD_REQUEST, format!("the body is no JSON: {error}"))),
        }
    }

    /// A field; null counts as absent.
    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    pub(super) fn text(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(ApiError::invalid(name, format!("{name} is no text"))),
        }
    }

    pub(super) fn required_text(&mut self, name: &str) -> Result<String, ApiError> {
        self.text(name)?.ok_or_else(|| ApiError::invalid(name, format!("{name} is missing")))
    }

    /// False without the field.
    pub(super) fn flag(&mut self, name: &str) -> Result<bool, ApiError> {
        Ok(self.choice(name)?.unwrap_or(false))
    }

    /// True or false, if the request says which.
    pub(super) fn choice(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(_) => Err(ApiError::invalid(name, format!("{name} is neither true nor false"))),
        }
    }

    /// The value of a field that has two names.
    ///
    /// # Errors
    /// As `read`; when both are given with different values.
    pub(super) fn one_of<T: PartialEq>(
        &mut self,
        names: [&str; 2],
        read: impl Fn(&mut Self, &str) -> Result<Option<T>, ApiError>,
    ) -> Result<Option<T>, ApiError> {
        let [own, other] = [read(self, names[0])?, read(self, names[1])?];
        if own.is_some() && other.is_some() && own != other {
            return Err(ApiError::invalid(names[1], format!("{} and {} differ", names[0], names[1])));
        }
        Ok(own.or(other))
    }

    /// # Errors
    /// When the request has one of these fields, which would change the numbers.
    pub(super) fn refuse(&mut self, names: &[&str]) -> Result<(), ApiError> {
        match names.iter().find(|name| self.take(name).is_some()) {
            Some(name) => {
                Err(ApiError::invalid(name, format!("{name} is not supported, and would change the numbers")))
            }
            None => Ok(()),
        }
    }

    /// A number from 1 on.
    pub(super) fn count(&mut self, name: &str) -> Result<Option<usize>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let count = value.as_u64().and_then(|count| usize::try_from(count).ok()).filter(|&count| count > 0);
        count.map(Some).ok_or_else(|| ApiError::invalid(name, format!("{name} is no number from 1 on")))
    }

    /// The name of the model.
    pub(super) fn model(&mut self) -> Result<String, ApiError> {
        let model = self.required_text("model")?;
        match model.len() {
            1..=NAME_BYTES_MAX => Ok(model),
            _ => Err(ApiError::invalid("model", "the name of the model is empty or too long")),
        }
    }
}
