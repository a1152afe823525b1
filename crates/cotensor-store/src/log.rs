//! Verbose logging of tensor events, for the whole process.

use crate::leases::Record;
use cotensor_core::sync::{read, write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};

/// A receiver of log lines: one call for each line.
pub type LogSink = dyn Fn(&str) + Send + Sync;

static VERBOSE: AtomicBool = AtomicBool::new(false);
/// None is standard error.
static SINK: RwLock<Option<Arc<LogSink>>> = RwLock::new(None);

/// Switches verbose logging on or off, for the whole process.
pub fn set_verbose(verbose: bool) {
    VERBOSE.store(verbose, Ordering::Relaxed);
}

/// Sets the receiver of the lines; `None` is standard error.
pub fn set_sink(sink: Option<Arc<LogSink>>) {
    *write(&SINK) = sink;
}

/// Logs an event. `event` is called only if verbose logging is on.
pub fn log(event: impl FnOnce() -> String) {
    if VERBOSE.load(Ordering::Relaxed) {
        write_line(&event());
    }
}

/// Logs tensors that their store frees: evicted, or released by their last holder.
pub(crate) fn log_freed(records: &[Arc<Record>]) {
    for record in records {
        let event = if record.is_retained() { "evict" } else { "free" };
        log(|| format!("{event} {}: {} bytes", record.name(), record.layout.size_bytes()));
    }
}

#[cold]
fn write_line(line: &str) {
    // Cloned, because a receiver may set another one.
    let sink = read(&SINK).clone();
    match sink {
        Some(sink) => sink(line),
        None => eprintln!("{line}"),
    }
}
