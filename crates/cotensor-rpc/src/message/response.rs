//! Answers: a result or an error.

use super::errors::{TENSORS_INSTEAD, from_object};
use super::id::{Id, Version};
use cotensor_core::Error;
use jsonrpsee_types::{ErrorCode, ErrorObjectOwned};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// An answer to a request.
#[derive(Debug, Serialize, Deserialize)]
pub struct Response {
    pub(super) jsonrpc: Version,
    #[serde(default, deserialize_with = "present_result", skip_serializing_if = "Option::is_none")]
    pub(super) result: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<ErrorObjectOwned>,
    /// The request's id; null when it could not be read.
    pub id: Id,
}

/// Tells a result that is null from a missing one.
pub(super) fn present_result<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Box<RawValue>>, D::Error> {
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

    /// The error's code, if this is an error.
    pub fn error_code(&self) -> Option<i32> {
        self.error.as_ref().map(ErrorObjectOwned::code)
    }

    /// The error, if this is one.
    pub fn error(&self) -> Option<&ErrorObjectOwned> {
        self.error.as_ref()
    }

    /// The result.
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

    /// The answer as JSON.
    ///
    /// # Errors
    /// `Unsupported` for one of more than `bytes_max` bytes. [`with_error`](Self::with_error) makes the answer in its
    /// place.
    pub fn to_bytes(&self, bytes_max: usize) -> cotensor_core::Result<Vec<u8>> {
        let body = self.to_json();
        if body.len() <= bytes_max {
            return Ok(body);
        }
        let message = format!(
            "the answer has {} bytes, and the message has room for {bytes_max}: ask for less, or {TENSORS_INSTEAD}",
            body.len()
        );
        Err(Error::unsupported(message).in_field("result"))
    }

    /// An error as JSON, for the same request.
    pub fn with_error(&self, error: ErrorObjectOwned) -> Vec<u8> {
        Self::new(self.id.clone(), Err(error)).to_json()
    }

    fn to_json(&self) -> Vec<u8> {
        // A response is a map of strings and raw JSON, which cannot fail to serialize.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// The answer to a message that is not a request.
    pub(super) fn refused(code: ErrorCode) -> Self {
        // The specification's spelling.
        let message = if code == ErrorCode::InvalidRequest { "Invalid Request" } else { code.message() };
        Self::new(Id::null(), Err(ErrorObjectOwned::owned(code.code(), message, None::<()>)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::to_object;
    use crate::message::{Incoming, parse_incoming};
    use cotensor_core::ErrorKind;

    #[test]
    fn too_long_answer_becomes_an_error_for_its_request() {
        let value = RawValue::from_string(format!("\"{}\"", "x".repeat(1000))).unwrap();
        let response = Response::new(Id::from(7), Ok(value));
        assert!(response.to_bytes(2000).is_ok());
        let body = response.with_error(to_object(&response.to_bytes(500).unwrap_err()));
        assert!(body.len() < 500);
        let Incoming::Response(refused) = parse_incoming(&body).unwrap() else { panic!("an answer") };
        assert_eq!((refused.id.as_u64(), refused.outcome().unwrap_err().kind()), (Some(7), ErrorKind::Unsupported));
    }

    #[test]
    fn response_has_a_result_or_an_error() {
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
