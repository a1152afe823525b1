//! Errors of reading files.

use cotensor_core::{Error, ErrorKind};

/// The error of a failed read.
pub(crate) fn read_error(error: &std::io::Error) -> Error {
    match error.kind() {
        std::io::ErrorKind::UnexpectedEof => Error::new(ErrorKind::Corrupt, "the file is truncated"),
        _ => Error::io("cannot read", error),
    }
}

/// The error of a failed read of the header field `field`, which it names when the file is truncated.
pub(crate) fn read_error_in(field: &str, error: &std::io::Error) -> Error {
    let error = read_error(error);
    if error.kind() == ErrorKind::Corrupt { error.in_field(field) } else { error }
}
