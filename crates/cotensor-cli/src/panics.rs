//! Reports panics as errors. The engine panics on some hostile graphs and converts these panics into errors; the
//! standard panic hook would print them a second time. An uncaught panic is a defect and is reported here.

use cotensor::core::sync::lock;
use cotensor::{Error, ErrorKind};
use std::backtrace::Backtrace;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Mutex;

/// The message, location and (if enabled by the environment) backtrace of the last panic.
static LAST: Mutex<String> = Mutex::new(String::new());

/// Returns the result of `work`; an uncaught panic becomes an error. Prints no panic messages.
///
/// # Errors
/// The errors of `work`; `Engine` for a panic.
pub(crate) fn catch<T>(work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    let before = take_hook();
    set_hook(Box::new(|panic| {
        let text = format!("{panic}\n{}", Backtrace::capture());
        *lock(&LAST) = text;
    }));
    // Unwind safe: nothing that `work` may leave inconsistent is used afterwards.
    let outcome = catch_unwind(AssertUnwindSafe(work));
    set_hook(before);
    outcome.unwrap_or_else(|_| {
        let last = lock(&LAST);
        Err(Error::new(ErrorKind::Engine, format!("a defect in this program, please report it: {last}")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_becomes_an_error_with_its_location() {
        let error = catch(|| -> Result<(), Error> { panic!("at the disco") });
        let error = error.unwrap_err().to_string();
        assert!(error.contains("at the disco") && error.contains("panics.rs"), "{error}");
        assert_eq!(catch(|| Ok(3)).unwrap(), 3);
    }
}
