//! JSON-RPC 2.0 messages, as their [specification](https://www.jsonrpc.org/specification) has them, and the codes of
//! Cotensor's own errors.

mod numbers;

pub use numbers::check_integers;

use cotensor_core::{Error, ErrorKind};
use jsonrpsee_types::{ErrorCode, ErrorObjectOwned};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The most calls in one batch.
pub const BATCH_MAX: usize = 1024;
/// The longest id of a request, in bytes as it is written, quotes included.
pub const ID_BYTES_MAX: usize = 256;

/// The way out for values that are too long for a message.
pub const TENSORS_INSTEAD: &str = "pass numbers as a tensor, and long data as bytes or one text";

/// The longest message of an error, in characters.
const MESSAGE_CHARS_MAX: usize = 2000;

/// One call: a request, or a notification when it has no id.
#[derive(Debug, Deserialize)]
pub struct Call {
    #[serde(rename = "jsonrpc")]
    _version: Version,
    /// `None` for a notification, which is never answered.
    #[serde(default, deserialize_with = "present")]
    pub id: Option<Id>,
    /// The method's name.
    pub method: String,
    /// By name (an object) or by position (an array).
    #[serde(default, deserialize_with = "structured")]
    pub params: Option<Box<RawValue>>,
}

#[derive(Debug, Serialize, Deserialize)]
enum Version {
    #[serde(rename = "2.0")]
    Two,
}

/// The id of a request: any JSON number, a string or null. It goes back as it was written.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub struct Id(Box<RawValue>);

impl Id {
    /// The id of an answer to a request whose id could not be read.
    pub fn null() -> Self {
        Self(RawValue::NULL.to_owned())
    }

    /// The number, if it is a whole one that fits.
    pub fn as_u64(&self) -> Option<u64> {
        self.0.get().parse().ok()
    }
}

impl From<u64> for Id {
    fn from(number: u64) -> Self {
        // Digits are JSON.
        RawValue::from_string(number.to_string()).map_or_else(|_| Self::null(), Self)
    }
}

impl PartialEq for Id {
    fn eq(&self, other: &Self) -> bool {
        self.0.get() == other.0.get()
    }
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        let text = raw.get();
        match text == "null" || text.starts_with(|first: char| first == '"' || first == '-' || first.is_ascii_digit()) {
            true if text.len() <= ID_BYTES_MAX => Ok(Self(raw)),
            true => Err(serde::de::Error::custom(format!("an id has at most {ID_BYTES_MAX} bytes"))),
            false => Err(serde::de::Error::custom("an id is a number, a string or null")),
        }
    }
}

/// A field that is there, even if it is null.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Id>, D::Error> {
    Id::deserialize(deserializer).map(Some)
}

/// Parameters as the specification allows them; null, which it does not, is what some send for none.
fn structured<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Box<RawValue>>, D::Error> {
    let params = Option::<Box<RawValue>>::deserialize(deserializer)?;
    match params.as_deref().is_none_or(|params| params.get().starts_with(['[', '{'])) {
        true => Ok(params),
        false => Err(serde::de::Error::custom("parameters are an object or an array")),
    }
}

/// An answer: a result or an error.
#[derive(Debug, Serialize, Deserialize)]
pub struct Response {
    jsonrpc: Version,
    #[serde(default, deserialize_with = "there", skip_serializing_if = "Option::is_none")]
    result: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<ErrorObjectOwned>,
    /// The request's; null when it could not be read.
    pub id: Id,
}

/// A result that is there, even if it is null.
fn there<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(deserializer).map(Some)
}

impl Response {
    /// An answer to request `id`.
    pub fn new(id: Id, outcome: Result<Box<RawValue>, ErrorObjectOwned>) -> Self {
        let (result, error) = match outcome {
            Ok(value) => (Some(value), None),
            Err(error) => (None, Some(error)),
        };
        Self { jsonrpc: Version::Two, result, error, id }
    }

    /// The error's code, if it is an error.
    pub fn error_code(&self) -> Option<i32> {
        self.error.as_ref().map(ErrorObjectOwned::code)
    }

    /// The value, or what went wrong.
    ///
    /// # Errors
    /// The other end's error; `Corrupt` for an answer with neither.
    pub fn outcome(self) -> cotensor_core::Result<Box<RawValue>> {
        match (self.result, self.error) {
            (_, Some(error)) => Err(from_object(&error)),
            (Some(value), None) => Ok(value),
            (None, None) => Err(Error::corrupt("an answer without a result or an error")),
        }
    }

    /// The answer as it is sent. One of more than `bytes_max` is an error in its place, for this request alone: the second
    /// value is false then.
    pub fn to_bytes(&self, bytes_max: usize) -> (Vec<u8>, bool) {
        // Answers are maps of strings and raw JSON: nothing in them can fail to be written.
        let body = serde_json::to_vec(self).unwrap_or_default();
        match body.len() <= bytes_max {
            true => (body, true),
            false => (self.refusal(body.len(), bytes_max), false),
        }
    }

    fn refusal(&self, bytes: usize, bytes_max: usize) -> Vec<u8> {
        let message = format!("the answer has {bytes} bytes, and there is room for {bytes_max}: {TENSORS_INSTEAD}");
        self.instead(&Error::unsupported(message).in_field("result"))
    }

    /// An error for the same request, as it is sent.
    pub fn instead(&self, error: &Error) -> Vec<u8> {
        serde_json::to_vec(&Self::new(self.id.clone(), Err(to_object(error)))).unwrap_or_default()
    }

    /// The other end's error, if that is the answer.
    pub fn error(&self) -> Option<&ErrorObjectOwned> {
        self.error.as_ref()
    }

    fn refused(code: ErrorCode) -> Self {
        // As the specification spells it.
        let message = if code == ErrorCode::InvalidRequest { "Invalid Request" } else { code.message() };
        Self::new(Id::null(), Err(ErrorObjectOwned::owned(code.code(), message, None::<()>)))
    }
}

/// What the end that is asked says: an answer, or something unasked.
#[derive(Debug)]
pub enum Said {
    /// To a call.
    Answer(Response),
    /// A notification.
    Notice {
        /// The method's name.
        method: String,
        /// By name or by position.
        params: Box<RawValue>,
    },
}

/// Reads what the end that is asked says.
///
/// # Errors
/// `Corrupt` for anything that is neither an answer nor a notification.
pub fn hear(body: &[u8]) -> cotensor_core::Result<Said> {
    #[derive(Deserialize)]
    struct Either {
        jsonrpc: Version,
        #[serde(default, deserialize_with = "present")]
        id: Option<Id>,
        method: Option<String>,
        params: Option<Box<RawValue>>,
        #[serde(default, deserialize_with = "there")]
        result: Option<Box<RawValue>>,
        error: Option<ErrorObjectOwned>,
    }
    let corrupt = |why: String| Error::corrupt(format!("from the daemon: {why}"));
    let Either { jsonrpc, id, method, params, result, error } =
        serde_json::from_slice(body).map_err(|error| corrupt(error.to_string()))?;
    match (id, method, params) {
        (Some(id), None, None) => Ok(Said::Answer(Response { jsonrpc, result, error, id })),
        (None, Some(method), Some(params)) => Ok(Said::Notice { method, params }),
        _ => Err(corrupt("neither an answer nor a notification".to_owned())),
    }
}

/// What a message holds.
#[derive(Debug)]
pub enum Message {
    /// One call.
    Single(Call),
    /// Calls that are answered together; those that were none are answered already.
    Batch(Vec<Result<Call, Response>>),
    /// No call at all: the answer.
    Refused(Response),
}

/// Whether a message is a batch, if it is anything.
pub fn is_batch(body: &[u8]) -> bool {
    body.trim_ascii_start().first() == Some(&b'[')
}

/// Reads the calls of a message. Nesting is bounded by `serde_json` (128 levels).
pub fn parse(body: &[u8]) -> Message {
    if !is_batch(body) {
        return match serde_json::from_slice::<Call>(body) {
            Ok(call) => Message::Single(call),
            Err(error) if error.is_data() => Message::Refused(Response::refused(ErrorCode::InvalidRequest)),
            Err(_) => Message::Refused(Response::refused(ErrorCode::ParseError)),
        };
    }
    let Ok(calls) = serde_json::from_slice::<Vec<&RawValue>>(body) else {
        return Message::Refused(Response::refused(ErrorCode::ParseError));
    };
    if calls.is_empty() || calls.len() > BATCH_MAX {
        return Message::Refused(Response::refused(ErrorCode::InvalidRequest));
    }
    let read =
        |call: &RawValue| serde_json::from_str(call.get()).map_err(|_| Response::refused(ErrorCode::InvalidRequest));
    Message::Batch(calls.into_iter().map(read).collect())
}

/// A request's or, without an id, a notification's body.
///
/// # Errors
/// `Invalid` for parameters that are no JSON.
pub fn encode_call(id: Option<u64>, method: &str, params: &impl Serialize) -> cotensor_core::Result<Vec<u8>> {
    #[derive(Serialize)]
    struct Outgoing<'a, P> {
        jsonrpc: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<u64>,
        method: &'a str,
        params: &'a P,
    }
    serde_json::to_vec(&Outgoing { jsonrpc: "2.0", id, method, params })
        .map_err(|error| Error::invalid(error.to_string()).in_field(method))
}

/// Codes from the range that the specification leaves to servers, and the names in an error's data.
const CODES: &[(ErrorKind, i32, &str)] = &[
    (ErrorKind::Invalid, jsonrpsee_types::error::INVALID_PARAMS_CODE, "invalid"),
    (ErrorKind::NotFound, -32001, "not_found"),
    (ErrorKind::Conflict, -32002, "conflict"),
    (ErrorKind::OverBudget, -32003, "over_budget"),
    (ErrorKind::Refused, -32004, "refused"),
    (ErrorKind::Unsupported, -32005, "unsupported"),
    (ErrorKind::Io, -32006, "io"),
    (ErrorKind::Engine, -32007, "engine"),
    (ErrorKind::TimedOut, -32008, "timed_out"),
    (ErrorKind::Corrupt, -32009, "corrupt"),
    (ErrorKind::Unreachable, -32010, "unreachable"),
];

/// What stands in an error's `data`.
#[derive(Debug, Serialize, Deserialize)]
struct Details {
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
}

/// The name of a kind in an error's data.
pub fn kind_name(kind: ErrorKind) -> &'static str {
    CODES.iter().find(|(known, ..)| *known == kind).map_or("invalid", |(.., name)| name)
}

/// The kind of that name.
pub fn kind_named(name: &str) -> Option<ErrorKind> {
    CODES.iter().find(|(.., known)| *known == name).map(|(kind, ..)| *kind)
}

/// An error on its way to whoever asked.
pub fn to_object(error: &Error) -> ErrorObjectOwned {
    let (_, code, name) = CODES.iter().find(|(kind, ..)| *kind == error.kind()).unwrap_or(&CODES[0]);
    let details = Details {
        kind: (*name).to_owned(),
        file: error.file().map(|file| file.display().to_string()),
        field: error.field().map(str::to_owned),
    };
    ErrorObjectOwned::owned(*code, shortened(error.message()), Some(details))
}

/// Errors quote what they are about; as much of it as helps.
fn shortened(message: &str) -> &str {
    message.char_indices().nth(MESSAGE_CHARS_MAX).map_or(message, |(end, _)| &message[..end])
}

/// An error as it was before it was sent; one that is not Cotensor's own becomes `Unsupported` or `Corrupt`.
pub fn from_object(object: &ErrorObjectOwned) -> Error {
    let details: Option<Details> = object.data().and_then(|data| serde_json::from_str(data.get()).ok());
    let kind = match object.code() {
        jsonrpsee_types::error::METHOD_NOT_FOUND_CODE => ErrorKind::Unsupported,
        code => CODES.iter().find(|(_, known, _)| *known == code).map_or(ErrorKind::Corrupt, |(kind, ..)| *kind),
    };
    let mut error = Error::new(kind, object.message());
    if let Some(details) = details {
        if let Some(file) = details.file {
            error = error.in_file(file);
        }
        if let Some(field) = details.field {
            error = error.in_field(field);
        }
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_notifications_and_batches_are_told_apart() {
        let id = |text: &str| serde_json::from_str::<Id>(text).unwrap();
        let single = |body: &str| match parse(body.as_bytes()) {
            Message::Single(call) => call,
            other => panic!("{other:?}"),
        };
        assert_eq!(single(r#"{"jsonrpc":"2.0","method":"a","id":1}"#).id, Some(Id::from(1)));
        assert_eq!(single(r#" {"jsonrpc":"2.0","method":"a","id":"x","params":[1]}"#).id, Some(id("\"x\"")));
        assert_eq!(single(r#"{"jsonrpc":"2.0","method":"a","id":null}"#).id, Some(Id::null()));
        assert_eq!(single(r#"{"jsonrpc":"2.0","method":"a"}"#).id, None);
        let refused = |body: &str| match parse(body.as_bytes()) {
            Message::Refused(response) => serde_json::to_value(response).unwrap()["error"]["code"].as_i64().unwrap(),
            other => panic!("{other:?}"),
        };
        for (body, code) in [
            ("", -32700),
            ("{", -32700),
            ("[", -32700),
            ("[1,", -32700),
            ("[]", -32600),
            ("1", -32600),
            ("{}", -32600),
            (r#"{"jsonrpc":"1.0","method":"a","id":1}"#, -32600),
            (r#"{"jsonrpc":"2.0","method":1,"params":"bar"}"#, -32600),
            (r#"{"jsonrpc":"2.0","method":"a","id":{}}"#, -32600),
            (r#"{"jsonrpc":"2.0","method":"a","params":"b","id":1}"#, -32600),
        ] {
            assert_eq!(refused(body), code, "{body}");
        }
        assert_eq!(refused(&"[".repeat(100_000)), -32700);
        assert_eq!(refused(&format!("[{}1]", "1,".repeat(BATCH_MAX))), -32600);
        let Message::Batch(calls) = parse(br#"[1,{"jsonrpc":"2.0","method":"a","id":1},{"foo":"boo"}]"#) else {
            panic!("a batch")
        };
        assert_eq!(calls.iter().map(Result::is_ok).collect::<Vec<_>>(), [false, true, false]);
    }

    #[test]
    fn any_number_is_an_id_and_goes_back_as_it_was_written() {
        for id in ["0", "-1", "1.5", "1e3", "-0", "18446744073709551616", "1e400", "\"\\u0041\"", "null"] {
            let Message::Single(call) = parse(format!(r#"{{"jsonrpc":"2.0","method":"a","id":{id}}}"#).as_bytes())
            else {
                panic!("{id} is an id")
            };
            let response = Response::new(call.id.unwrap(), Ok(RawValue::NULL.to_owned()));
            assert_eq!(
                serde_json::to_string(&response).unwrap(),
                format!(r#"{{"jsonrpc":"2.0","result":null,"id":{id}}}"#)
            );
        }
        for id in ["[1]", "{}", "true", &format!("\"{}\"", "x".repeat(ID_BYTES_MAX)), &"1".repeat(ID_BYTES_MAX + 1)] {
            let body = format!(r#"{{"jsonrpc":"2.0","method":"a","id":{id}}}"#);
            assert!(
                matches!(parse(body.as_bytes()), Message::Refused(response) if response.error_code() == Some(-32600))
            );
        }
    }

    #[test]
    fn an_answer_that_is_too_long_is_an_error_for_its_request() {
        let value = RawValue::from_string(format!("\"{}\"", "x".repeat(1000))).unwrap();
        let response = Response::new(Id::from(7), Ok(value));
        assert!(response.to_bytes(2000).1);
        let (body, whole) = response.to_bytes(500);
        assert!(!whole && body.len() < 500);
        let Said::Answer(refused) = hear(&body).unwrap() else { panic!("an answer") };
        assert_eq!((refused.id.as_u64(), refused.outcome().unwrap_err().kind()), (Some(7), ErrorKind::Unsupported));
    }

    #[test]
    fn answers_and_notices_are_told_apart() {
        let heard = |body: &str| hear(body.as_bytes());
        assert!(matches!(heard(r#"{"jsonrpc":"2.0","result":null,"id":7}"#), Ok(Said::Answer(answer))
            if answer.id == Id::from(7) && answer.result.is_some()));
        assert!(matches!(heard(r#"{"jsonrpc":"2.0","method":"a","params":[1]}"#), Ok(Said::Notice { method, params })
            if method == "a" && params.get() == "[1]"));
        for wrong in
            ["", "[]", "{}", r#"{"jsonrpc":"2.0","result":1}"#, r#"{"jsonrpc":"2.0","method":"a","params":[],"id":1}"#]
        {
            assert_eq!(heard(wrong).unwrap_err().kind(), ErrorKind::Corrupt, "{wrong}");
        }
    }

    #[test]
    fn errors_survive_the_way() {
        for (kind, code, _) in CODES {
            let error = Error::new(*kind, "why").in_file("a/b").in_field("shape");
            let object = to_object(&error);
            assert_eq!(object.code(), *code);
            let back = from_object(&object);
            assert_eq!((back.kind(), back.to_string()), (*kind, error.to_string()));
        }
        assert_eq!(to_object(&Error::invalid("ä".repeat(1 << 20))).message(), "ä".repeat(MESSAGE_CHARS_MAX));
    }

    #[test]
    fn responses_have_a_result_or_an_error() {
        let value = serde_json::value::to_raw_value(&19).unwrap();
        let response = Response::new(Id::from(1), Ok(value));
        assert_eq!(serde_json::to_string(&response).unwrap(), r#"{"jsonrpc":"2.0","result":19,"id":1}"#);
        let response: Response =
            serde_json::from_str(r#"{"jsonrpc":"2.0","error":{"code":-32601,"message":"Method not found"},"id":"1"}"#)
                .unwrap();
        assert_eq!((response.id.as_u64(), serde_json::to_string(&response.id).unwrap()), (None, "\"1\"".to_owned()));
        assert_eq!(response.outcome().unwrap_err().kind(), ErrorKind::Unsupported);
        let null: Response = serde_json::from_str(r#"{"jsonrpc":"2.0","result":null,"id":1}"#).unwrap();
        assert_eq!(null.outcome().unwrap().get(), "null");
    }
}
