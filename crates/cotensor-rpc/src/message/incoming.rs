//! Messages from a server: answers and notifications.

use super::call::is_batch;
use super::id::{Id, Version, present_id};
use super::response::{Response, present_result};
use cotensor_core::Error;
use jsonrpsee_types::ErrorObjectOwned;
use serde::Deserialize;
use serde_json::value::RawValue;

/// A message from a server.
#[derive(Debug)]
pub enum Incoming {
    /// The answer to a call.
    Response(Response),
    /// The answers to the calls of a batch, in any order.
    Batch(Vec<Response>),
    /// A notification.
    Notification {
        /// The method's name.
        method: String,
        /// By name or by position.
        params: Box<RawValue>,
    },
}

/// Reads a message from a server.
///
/// # Errors
/// `Corrupt` for a message that is none of them.
pub fn parse_incoming(body: &[u8]) -> cotensor_core::Result<Incoming> {
    #[derive(Deserialize)]
    struct Either {
        jsonrpc: Version,
        #[serde(default, deserialize_with = "present_id")]
        id: Option<Id>,
        method: Option<String>,
        params: Option<Box<RawValue>>,
        #[serde(default, deserialize_with = "present_result")]
        result: Option<Box<RawValue>>,
        error: Option<ErrorObjectOwned>,
    }
    let corrupt = |why: String| Error::corrupt(format!("message from the server: {why}"));
    if is_batch(body) {
        let answers: Vec<Response> = serde_json::from_slice(body).map_err(|error| corrupt(error.to_string()))?;
        return if answers.is_empty() {
            Err(corrupt("a batch of no answers".to_owned()))
        } else {
            Ok(Incoming::Batch(answers))
        };
    }
    let Either { jsonrpc, id, method, params, result, error } =
        serde_json::from_slice(body).map_err(|error| corrupt(error.to_string()))?;
    match (id, method, params) {
        (Some(id), None, None) => Ok(Incoming::Response(Response { jsonrpc, result, error, id })),
        (None, Some(method), Some(params)) => Ok(Incoming::Notification { method, params }),
        _ => Err(corrupt("neither an answer nor a notification".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_core::ErrorKind;

    #[test]
    fn parse_incoming_distinguishes_answers_and_notifications() {
        let parsed = |body: &str| parse_incoming(body.as_bytes());
        assert!(matches!(parsed(r#"{"jsonrpc":"2.0","result":null,"id":7}"#), Ok(Incoming::Response(answer))
            if answer.id == Id::from(7) && answer.result.is_some()));
        assert!(
            matches!(parsed(r#"{"jsonrpc":"2.0","method":"a","params":[1]}"#), Ok(Incoming::Notification { method, params })
            if method == "a" && params.get() == "[1]")
        );
        let batch = r#"[{"jsonrpc":"2.0","result":1,"id":8},{"jsonrpc":"2.0","result":2,"id":7}]"#;
        assert!(matches!(parsed(batch), Ok(Incoming::Batch(answers)) if answers[1].id == Id::from(7)));
        for wrong in [
            "",
            "[]",
            "[1]",
            "{}",
            r#"{"jsonrpc":"2.0","result":1}"#,
            r#"{"jsonrpc":"2.0","method":"a","params":[],"id":1}"#,
        ] {
            assert_eq!(parsed(wrong).unwrap_err().kind(), ErrorKind::Corrupt, "{wrong}");
        }
    }
}
