//! Errors as JavaScript throws them, and the check of its JSON.

use cotensor_core::Error;
use serde::de::DeserializeOwned;
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
