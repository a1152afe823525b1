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
    read_options(&named).map_err(|error| {
        let is_wrong = |name: &&String| error.field().is_some_and(|field| field == snake_case(name));
        given.keys().find(is_wrong).map_or(error.clone(), |name| Error::invalid(error.message()).in_field(name))
    })
}

fn snake_case(name: &str) -> String {
    let capital = |letter: char| letter.is_ascii_uppercase().then_some('_');
    name.chars().flat_map(|letter| capital(letter).into_iter().chain([letter.to_ascii_lowercase()])).collect()
}
