use cotensor_core::{Error, ErrorKind, Result};
use cotensor_memory::process::HeapWork;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Turns a panic of an engine, which a hostile graph can cause, into an error. Afterwards, the memory that a long input took
/// returns to the system.
pub(super) fn guarded<T>(doing: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let _work = HeapWork::begin();
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Err(Error::new(ErrorKind::Engine, format!("the engine panicked while {doing}: {text}")))
    })
}
