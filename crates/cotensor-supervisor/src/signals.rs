//! The signals that stop a daemon.

use cotensor_core::{Error, Result};
use rustix::process::{Signal as SignalNumber, kill_process};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM, SIGINT, and SIGHUP unless this process was started to ignore it, as `nohup` does.
pub struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Option<Signal>,
}

impl StopSignals {
    /// Watches for the signals. The caller is on a runtime.
    ///
    /// # Errors
    /// `Io` when the system refuses.
    pub fn new() -> Result<Self> {
        let watch = |kind| signal(kind).map_err(|error| Error::io("watching for signals", &error));
        let ignored = cotensor_memory::process::is_signal_ignored(SignalKind::hangup().as_raw_value());
        let hangup = if ignored { None } else { Some(watch(SignalKind::hangup())?) };
        Ok(Self { terminate: watch(SignalKind::terminate())?, interrupt: watch(SignalKind::interrupt())?, hangup })
    }

    /// Waits for one of them.
    pub async fn received(&mut self) {
        let Self { terminate, interrupt, hangup } = self;
        let hung_up = async {
            match hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hung_up => {}
        }
    }
}

/// Sends SIGTERM to this process.
pub fn stop_this_process() {
    let _ = kill_process(rustix::process::getpid(), SignalNumber::TERM);
}
