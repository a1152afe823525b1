//! Requests and notifications, single or in batches.

use super::id::{Id, Version, present_id};
use super::response::Response;
use cotensor_core::Error;
use jsonrpsee_types::ErrorCode;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The most calls in one batch.
pub const BATCH_MAX: usize = 1024;

/// One call: a request, or a notification when it has no id.
#[derive(Debug, Deserialize)]
pub struct Call {
    #[serde(rename = "jsonrpc")]
    _version: Version,
    /// `None` for a notification, which has no answer.
    #[serde(default, deserialize_with = "present_id")]
    pub id: Option<Id>,
    /// The method's name.
    pub method: String,
    /// By name (an object) or by position (an array).
    #[serde(default, deserialize_with = "structured")]
    pub params: Option<Box<RawValue>>,
}

/// Parameters as the specification allows them. Null, which it does not allow, counts as missing: some clients send it.
fn structured<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Box<RawValue>>, D::Error> {
    let params = Option::<Box<RawValue>>::deserialize(deserializer)?;
    if params.as_deref().is_none_or(|params| params.get().starts_with(['[', '{'])) {
        Ok(params)
    } else {
        Err(serde::de::Error::custom("parameters are an object or an array"))
    }
}

/// What a message to a server holds.
#[derive(Debug)]
pub enum Message {
    /// One call.
    Single(Call),
    /// Calls with one common answer, and the answers to elements that are not calls.
    Batch(Vec<Result<Call, Response>>),
    /// No call: the answer.
    Refused(Response),
}

/// Whether a message is a batch. True says nothing about the rest of it.
pub fn is_batch(body: &[u8]) -> bool {
    body.trim_ascii_start().first() == Some(&b'[')
}

/// Reads the calls of a message. `serde_json` bounds the nesting at 128 levels.
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

/// The body of a request or, without an id, of a notification.
///
/// # Errors
/// `Invalid` for parameters that JSON cannot represent.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::ID_BYTES_MAX;

    #[test]
    fn parse_distinguishes_requests_notifications_and_batches() {
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
    fn response_repeats_the_text_of_any_numeric_id() {
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
}
