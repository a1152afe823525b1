use cotensor_core::{Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Turns a panic of a library, which a hostile file may cause, into `failure`. What `work` changes must not be used after a
/// panic.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T>, failure: impl FnOnce() -> Error) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(failure()))
}
