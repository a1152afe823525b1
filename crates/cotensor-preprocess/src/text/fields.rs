//! Fields of the files of sentence-transformers, and the folders of its modules.

use cotensor_core::{Error, Result};
use serde_json::Value;

/// The name of a file in `folder`; an empty `folder` is the model's folder.
pub(super) fn file_in(folder: &str, file: &str) -> String {
    if folder.is_empty() { file.to_owned() } else { format!("{folder}/{file}") }
}

/// The folder of a module in the model's folder.
///
/// # Errors
/// `Invalid` for a path with more than one part.
pub(super) fn folder_of(path: &str) -> Result<&str> {
    if path.contains(['/', '\\', '\0']) || path.starts_with('.') {
        return Err(Error::invalid(format!("{path:?} is not a plain folder name")));
    }
    Ok(path)
}

/// A flag that may be absent. Null is false, as in Python.
pub(super) fn flag(config: &Value, field: &str, default: bool) -> Result<bool> {
    match config.get(field) {
        None => Ok(default),
        Some(Value::Null) => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(other) => Err(Error::invalid(format!("{other} is not true or false")).in_field(field)),
    }
}

/// A positive number that may be absent or null.
pub(super) fn count(config: &Value, field: &str) -> Result<Option<usize>> {
    match config.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let count = value.as_u64().filter(|&count| count > 0).and_then(|count| usize::try_from(count).ok());
            count.map(Some).ok_or_else(|| Error::invalid(format!("{value} is not a positive number")).in_field(field))
        }
    }
}
