//! What happens to tensors, told as it happens to whoever debugs.

use crate::leases::Record;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Where the lines of verbose logging go, one call a line.
pub type LogSink = dyn Fn(&str) + Send + Sync;

static VERBOSE: AtomicBool = AtomicBool::new(false);
/// Standard error until another is set.
static SINK: RwLock<Option<Arc<LogSink>>> = RwLock::new(None);

/// Switches verbose logging on or off, for the whole process.
pub fn set_verbose(verbose: bool) {
    VERBOSE.store(verbose, Ordering::Relaxed);
}

/// Sets where the lines go; none is standard error.
pub fn set_sink(sink: Option<Arc<LogSink>>) {
    *SINK.write().unwrap_or_else(PoisonError::into_inner) = sink;
}

/// Tells of an event, which is put into words only if anybody listens.
pub fn tell(event: impl FnOnce() -> String) {
    if VERBOSE.load(Ordering::Relaxed) {
        pass_on(&event());
    }
}

/// Tells of tensors that leave their store: evicted, or let go by their last holder.
pub(crate) fn tell_gone(records: &[Arc<Record>]) {
    for record in records {
        let event = if record.is_retained() { "evict" } else { "free" };
        tell(|| format!("{event} {}: {} bytes", record.name(), record.layout.size_bytes()));
    }
}

#[cold]
fn pass_on(line: &str) {
    // Cloned, so that a sink may set another.
    let sink = SINK.read().unwrap_or_else(PoisonError::into_inner).clone();
    match sink {
        Some(sink) => sink(line),
        None => eprintln!("{line}"),
    }
}
