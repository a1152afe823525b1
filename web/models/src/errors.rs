//! Errors as JavaScript throws them, and the check of its JSON.

use cotensor_core::Error;
use cotensor_pipeline::{User, read_options};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use wasm_bindgen::prelude::*;

#[wasm_bindgen(raw_module = "../errors.js")]
extern "C" {
    /// The class of all errors in TypeScript.
    pub type CotensorError;

    #[wasm_bindgen(constructor)]
    fn new(kind: &str, message: &str) -> CotensorError;
}

/// The result of a method that JavaScript calls.
pub type Result<T> = std::result::Result<T, CotensorError>;

impl From<Error> for CotensorError {
    fn from(error: Error) -> Self {
        // The names of the kinds are stable.
        Self::new(&format!("{:?}", error.kind()), &error.to_string())
    }
}

/// A value that JavaScript passes as JSON. `field` names it in errors.
///
/// # Errors
/// `Invalid` for another JSON.
pub(crate) fn parsed<T: DeserializeOwned>(text: &str, field: &str) -> cotensor_core::Result<T> {
    serde_json::from_str(text).map_err(|error| Error::invalid(error.to_string()).in_field(field))
}

/// A user that JavaScript passes as JSON. Options have the names of JavaScript, such as `maxNewTokens`, or those of [`User`].
///
/// # Errors
/// As [`read_options`].
pub(crate) fn user_of(text: &str) -> cotensor_core::Result<User> {
    let given: Map<String, Value> = parsed(text, "options")?;
    let named = given.iter().map(|(name, value)| (snake_case(name), value.clone())).collect();
    read_options(&named).map_err(|error| as_given(error, text))
}

/// An error about an option, with the name that the program gave the option. `text` is that of [`user_of`].
pub(crate) fn as_given(error: Error, text: &str) -> Error {
    let given: Map<String, Value> = parsed(text, "options").unwrap_or_default();
    given.keys().fold(error, |error, name| named(error, name))
}

/// An error with the option `name` of JavaScript in place of the same option of [`User`].
pub(crate) fn named(error: Error, name: &str) -> Error {
    // A field of a file keeps its name.
    let field = error.field().filter(|_| error.file().is_none());
    match field.and_then(|field| field.strip_suffix(snake_case(name).as_str())) {
        Some(before) if before.is_empty() || before.ends_with('.') => {
            Error::new(error.kind(), error.message()).in_field(format!("{before}{name}"))
        }
        _ => error,
    }
}

fn snake_case(name: &str) -> String {
    let capital = |letter: char| letter.is_ascii_uppercase().then_some('_');
    name.chars().flat_map(|letter| capital(letter).into_iter().chain([letter.to_ascii_lowercase()])).collect()
}
