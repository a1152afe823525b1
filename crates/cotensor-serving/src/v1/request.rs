use super::error::ApiError;
use crate::loaded::LoadedModels;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::http::StatusCode;
use cotensor_model::family::AnswerKind;
use serde_json::{Map, Value};

/// The most bytes of a model's name.
const NAME_BYTES_MAX: usize = 4096;

/// The most bytes of a request.
pub(super) const BODY_BYTES_MAX: usize = 16 << 20;

/// The fields of a request's JSON object. Unknown fields are ignored, because clients send fields of their own; those that
/// would change numbers are refused by name.
pub(super) struct Fields(Map<String, Value>);

impl Fields {
    /// # Errors
    /// For a body that is too long or no JSON object.
    pub(super) fn of(body: Result<Bytes, BytesRejection>) -> Result<Self, ApiError> {
        let body = body.map_err(|error| match error.status() {
            StatusCode::PAYLOAD_TOO_LARGE => {
                let message =
                    format!("a request has at most {BODY_BYTES_MAX} bytes: send its texts in several requests");
                ApiError::with_status(error.status(), message)
            }
            status => ApiError::with_status(status, error.body_text()),
        })?;
        let parsed = serde_json::from_slice(&body).or_else(|error| match replace_lone_surrogates(&body) {
            Some(body) => serde_json::from_slice(&body),
            None => Err(error),
        });
        match parsed {
            Ok(Value::Object(fields)) => Ok(Self(fields)),
            Ok(_) => Err(ApiError::invalid("", "the body is not a JSON object")),
            Err(error) => Err(ApiError::with_status(StatusCode::BAD_REQUEST, format!("the body is not JSON: {error}"))),
        }
    }

    /// A list of texts, of which each may be an object with the field `text`. Errors have the position of the text.
    ///
    /// # Errors
    /// Without the list, for more than `most` texts or none, and for an element of another kind.
    pub(super) fn texts(&mut self, name: &str, most: usize) -> Result<Vec<String>, ApiError> {
        let refused = |message: String| ApiError::invalid(name, message);
        let Some(Value::Array(list)) = self.take(name) else { return Err(refused(format!("{name} is not a list"))) };
        check_count(name, list.len(), most)?;
        let text = |(at, value): (usize, Value)| match value {
            Value::String(text) => Ok(text),
            Value::Object(mut fields) => match fields.remove("text") {
                Some(Value::String(text)) => Ok(text),
                _ => Err(refused(format!("{name}[{at}] has no text in its field text"))),
            },
            other => Err(refused(format!("{name}[{at}] must be a text, not {}", kind(&other)))),
        };
        list.into_iter().enumerate().map(text).collect()
    }

    /// Whether texts that are too long are cut at their end: yes, unless the request says otherwise.
    pub(super) fn truncates(&mut self) -> Result<bool, ApiError> {
        match self.take("truncate") {
            None | Some(Value::Bool(true)) => Ok(true),
            Some(Value::Bool(false)) => Ok(false),
            Some(Value::String(side)) if side.eq_ignore_ascii_case("end") => Ok(true),
            Some(Value::String(side)) if side.eq_ignore_ascii_case("none") => Ok(false),
            Some(_) => Err(ApiError::invalid("truncate", "truncate is neither true, false, END nor NONE")),
        }
    }

    /// A field; null counts as absent.
    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    /// Whether a field is given; null counts as absent.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|value| !value.is_null())
    }

    pub(super) fn is_text(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(Value::is_string)
    }

    pub(super) fn text(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(ApiError::invalid(name, format!("{name} is not text"))),
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
        count.map(Some).ok_or_else(|| ApiError::invalid(name, format!("{name} must be 1 or more")))
    }

    /// The name of the model; without the field, that of the only loaded one with a task of this kind, because clients of
    /// servers with one model send no name.
    pub(super) fn model_or_only(&mut self, models: &LoadedModels, kind: AnswerKind) -> Result<String, ApiError> {
        if self.has("model") {
            return self.model();
        }
        let mut names: Vec<String> =
            models.list().into_iter().filter(|info| info.does(kind)).map(|info| info.key.name).collect();
        names.dedup();
        match names.as_slice() {
            [only] => Ok(only.clone()),
            [] => Err(ApiError::invalid(
                "model",
                "model is missing, and no model for this is loaded: `cotensor models load` loads one",
            )),
            several => Err(ApiError::invalid(
                "model",
                format!("model is missing, and several are loaded: {}", several.join(", ")),
            )),
        }
    }

    /// # Errors
    /// For a request to cut texts at their beginning.
    pub(super) fn refuse_left_truncation(&mut self) -> Result<(), ApiError> {
        match self.text("truncation_direction")?.as_deref() {
            None | Some("Right" | "right") => Ok(()),
            Some(_) => Err(ApiError::invalid("truncation_direction", "texts are cut at their end only (Right)")),
        }
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

/// # Errors
/// For a list that is empty or too long.
pub(super) fn check_count(name: &str, count: usize, most: usize) -> Result<(), ApiError> {
    match count {
        0 => Err(ApiError::invalid(name, format!("{name} has 0 texts; 1 to {most} are supported"))),
        count if count > most => {
            let message = format!("{name} has {count} texts; 1 to {most} are supported: send several requests");
            Err(ApiError::invalid(name, message))
        }
        _ => Ok(()),
    }
}

/// What a value of JSON is, for errors.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// JSON with U+FFFD in the place of each escaped half of a surrogate pair without the other half, which Python and JavaScript
/// write and no UTF-8 text can have; `None` without any.
fn replace_lone_surrogates(json: &[u8]) -> Option<Vec<u8>> {
    let unit = |at: usize| {
        let digits = json.get(at..at + 6)?.strip_prefix(b"\\u")?;
        u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    let mut replaced = None;
    let mut at = 0;
    while let Some(next) = json[at..].iter().position(|&byte| byte == b'\\') {
        at += next;
        at += match unit(at) {
            Some(0xd800..=0xdbff) if matches!(unit(at + 6), Some(0xdc00..=0xdfff)) => 12,
            Some(0xd800..=0xdfff) => {
                replaced.get_or_insert_with(|| json.to_vec())[at + 2..at + 6].copy_from_slice(b"fffd");
                6
            }
            Some(_) => 6,
            None => 2,
        };
        if at >= json.len() {
            break;
        }
    }
    replaced
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lone_surrogates_are_replaced_and_pairs_stay() {
        let replaced =
            |json: &str| replace_lone_surrogates(json.as_bytes()).map(|json| String::from_utf8(json).unwrap());
        assert_eq!(replaced(r#""a\ud800""#).unwrap(), r#""a\ufffd""#);
        assert_eq!(replaced(r#""\udc00\ud83d\ude00\uD83Dx""#).unwrap(), r#""\ufffd\ud83d\ude00\ufffdx""#);
        assert_eq!(replaced(r#""\ud83d\ud83d\ude00""#).unwrap(), r#""\ufffd\ud83d\ude00""#);
        // An escaped backslash before a u is not an escape of a character.
        for whole in [r#""\\ud800""#, r#""\ud83d\ude00""#, r#""\u00e9""#, "\"\\", "\\", "\\ud8", ""] {
            assert_eq!(replaced(whole), None, "{whole}");
        }
    }
}
