//! Random numbers on wasm32, which has no source of its own. The tokenizer's hash tables use them.
#![allow(unsafe_code, reason = "getrandom calls a function with this signature")]

use getrandom::Error;

/// The backend `custom` of getrandom calls this function. Its numbers are constant, so that tests repeat.
#[unsafe(no_mangle)]
unsafe extern "Rust" fn __getrandom_v03_custom(target: *mut u8, length: usize) -> Result<(), Error> {
    // SAFETY: getrandom passes writable memory of this length.
    unsafe { target.write_bytes(0x5a, length) };
    Ok(())
}
