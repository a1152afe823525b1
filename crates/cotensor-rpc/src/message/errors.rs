//! Cotensor's errors as JSON-RPC error objects.

use cotensor_core::{Error, ErrorKind};
use jsonrpsee_types::ErrorObjectOwned;
use serde::{Deserialize, Serialize};

/// The way out for values that are too long for a message.
pub const TENSORS_INSTEAD: &str = "pass numbers as a tensor, and long data as bytes or one text";

/// The longest message of an error, in characters.
const MESSAGE_CHARS_MAX: usize = 2000;

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

/// The `data` of an error.
#[derive(Debug, Serialize, Deserialize)]
struct Details {
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
}

/// The name of a kind in an error's `data`.
pub fn kind_name(kind: ErrorKind) -> &'static str {
    CODES.iter().find(|(known, ..)| *known == kind).map_or("invalid", |(.., name)| name)
}

/// The kind with that name.
pub fn kind_named(name: &str) -> Option<ErrorKind> {
    CODES.iter().find(|(.., known)| *known == name).map(|(kind, ..)| *kind)
}

/// An error as JSON-RPC represents it.
pub fn to_object(error: &Error) -> ErrorObjectOwned {
    let (_, code, name) = CODES.iter().find(|(kind, ..)| *kind == error.kind()).unwrap_or(&CODES[0]);
    let details = Details {
        kind: (*name).to_owned(),
        file: error.file().map(|file| file.display().to_string()),
        field: error.field().map(str::to_owned),
    };
    ErrorObjectOwned::owned(*code, shortened(error.message()), Some(details))
}

/// Errors quote the caller's input, which may be long.
fn shortened(message: &str) -> &str {
    message.char_indices().nth(MESSAGE_CHARS_MAX).map_or(message, |(end, _)| &message[..end])
}

/// The error that [`to_object`] converted. An error of another server becomes `Unsupported` or `Corrupt`.
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
    fn error_survives_the_round_trip() {
        for (kind, code, _) in CODES {
            let error = Error::new(*kind, "why").in_file("a/b").in_field("shape");
            let object = to_object(&error);
            assert_eq!(object.code(), *code);
            let back = from_object(&object);
            assert_eq!((back.kind(), back.to_string()), (*kind, error.to_string()));
        }
        assert_eq!(to_object(&Error::invalid("ä".repeat(1 << 20))).message(), "ä".repeat(MESSAGE_CHARS_MAX));
    }
}
