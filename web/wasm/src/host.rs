//! What the store needs from JavaScript: a clock and a log.

use cotensor_store::Clock;
use cotensor_store::log;
use std::sync::Arc;
use std::time::Duration;
use wasm_bindgen::prelude::*;

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = performance, js_name = now)]
    fn milliseconds() -> f64;

    #[wasm_bindgen(js_namespace = console, js_name = log)]
    fn write_line(line: &str);
}

/// `performance.now()`.
pub(crate) struct PerformanceClock;

impl Clock for PerformanceClock {
    fn now(&self) -> Duration {
        Duration::from_secs_f64(milliseconds().max(0.0) / 1000.0)
    }
}

/// Writes the events of all tensors to the console, or stops doing so.
#[wasm_bindgen(js_name = setVerboseLogging)]
pub fn set_verbose_logging(verbose: bool) {
    log::set_sink(Some(Arc::new(write_line)));
    log::set_verbose(verbose);
}
