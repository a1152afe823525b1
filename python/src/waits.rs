//! Reports of long waits by Python's `logging`, under the name "cotensor.waiting".

use cotensor_core::waiting::{WaitReport, set_wait_reporter};
use pyo3::prelude::*;
use std::sync::Arc;

const LOGGER: &str = "cotensor.waiting";

/// Logs this process's reports: at level INFO while the awaited process does what the caller requested, else at WARNING.
pub(crate) fn log_waits() {
    set_wait_reporter(Some(Arc::new(|report: &WaitReport| {
        let report = report.clone();
        // Python's handlers may run any code, and a thread that has the interpreter may wait for a lock of the waiting thread.
        // A thread for each report, because a forked child has no thread that its parent started.
        drop(std::thread::Builder::new().name("cotensor-waits".to_owned()).spawn(move || log(&report)));
    })));
}

fn log(WaitReport { text, is_expected }: &WaitReport) {
    // `None` while the interpreter shuts down.
    let logged = Python::try_attach(|py| -> PyResult<()> {
        let logger = py.import("logging")?.call_method1("getLogger", (LOGGER,))?;
        logger.call_method1(if *is_expected { "info" } else { "warning" }, ("%s", text))?;
        Ok(())
    });
    if let Some(Err(error)) = logged {
        Python::try_attach(|py| error.print(py));
    }
}
