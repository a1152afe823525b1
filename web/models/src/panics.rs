//! Panics of libraries, which a damaged file may cause.

use crate::errors::CotensorError;
use cotensor_core::Error;
use std::panic::{PanicHookInfo, set_hook};
use wasm_bindgen::prelude::*;

/// Makes a panic an error in JavaScript. WebAssembly has no unwinding, so the objects of the call stay unusable. A second panic
/// traps: the page loads the module again.
#[wasm_bindgen(start)]
pub fn start() {
    set_hook(Box::new(|info: &PanicHookInfo<'_>| {
        let reason = info.payload_as_str().unwrap_or("without a reason");
        let error = Error::corrupt(format!("the file is damaged: a library failed on it: {reason}"));
        wasm_bindgen::throw_val(CotensorError::from(error).into())
    }));
}
