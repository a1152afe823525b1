//! Errors as JavaScript throws them.

use cotensor_core::Error;
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
