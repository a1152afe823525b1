//! Panics told once. The engine panics on some hostile graphs, on its own threads, and its guard makes an error of that:
//! the standard hook would tell it too, in many lines. A panic that nobody catches is a defect, and is told here.

use cotensor::{Error, ErrorKind};
use std::backtrace::Backtrace;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::{Mutex, PoisonError};

/// The last panic: what, where and, if the environment asks for it, how it came to that.
static LAST: Mutex<String> = Mutex::new(String::new());

/// `work`'s result; a panic that came through becomes an error. What panics say is held back until it is known whether
/// anybody catches them.
pub(crate) fn told<T>(work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    let before = take_hook();
    set_hook(Box::new(|panic| {
        let text = format!("{panic}\n{}", Backtrace::capture());
        *LAST.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }));
    // Nothing that `work` may leave half-done is looked at afterwards.
    let outcome = catch_unwind(AssertUnwindSafe(work));
    set_hook(before);
    outcome.unwrap_or_else(|_| {
        let last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        Err(Error::new(ErrorKind::Engine, format!("a defect in this program, please report it: {last}")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_defect_is_an_error_that_says_where() {
        let error = told(|| -> Result<(), Error> { panic!("at the disco") });
        let error = error.unwrap_err().to_string();
        assert!(error.contains("at the disco") && error.contains("panics.rs"), "{error}");
        assert_eq!(told(|| Ok(3)).unwrap(), 3);
    }
}
