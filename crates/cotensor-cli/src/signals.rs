//! Signals that end a command, for commands that must clean up first.

use cotensor::core::{Error, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The signals whose default action ends the process.
const ENDING: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// A socket that receives a byte for each of `signals`.
///
/// # Errors
/// `Io` when the handler cannot be installed.
pub(crate) fn bytes(signals: &[i32]) -> Result<UnixStream> {
    let io = |error: std::io::Error| Error::io("handling signals", &error);
    let (receiver, sender) = UnixStream::pair().map_err(io)?;
    for &signal in signals {
        signal_hook::low_level::pipe::register(signal, sender.try_clone().map_err(io)?).map_err(io)?;
    }
    Ok(receiver)
}

/// When a signal arrives, runs `clean_up` on a separate thread and then ends the process.
///
/// # Errors
/// `Io` when the handler cannot be installed.
pub(crate) fn clean_up_first(clean_up: impl FnOnce() + Send + 'static) -> Result<()> {
    // Installed before the socket, so that the signal's number is set when its byte arrives.
    let signals = Signals::deferred()?;
    let mut arrived = bytes(&ENDING)?;
    let end = move || {
        if arrived.read_exact(&mut [0]).is_ok() {
            clean_up();
            signals.raise();
        }
    };
    let waiting = std::thread::Builder::new().name("signals".to_owned()).spawn(end);
    waiting.map(drop).map_err(|error| Error::io("handling signals", &error))
}

/// The first signal makes the result true; the second one ends the process.
///
/// # Errors
/// `Io` when the handler cannot be installed.
pub(crate) fn stop_first() -> Result<Arc<AtomicBool>> {
    let stopped = Arc::new(AtomicBool::new(false));
    for signal in ENDING {
        let io = |error: std::io::Error| Error::io("handling signals", &error);
        // In this order: a handler that ran before the default action would have set the flag.
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&stopped)).map_err(io)?;
        signal_hook::flag::register(signal, Arc::clone(&stopped)).map_err(io)?;
    }
    Ok(stopped)
}

/// Defers SIGINT, SIGTERM and SIGHUP: the command polls for them, cleans up and raises the signal again.
#[derive(Clone)]
pub(crate) struct Signals(Arc<AtomicUsize>);

impl Signals {
    /// # Errors
    /// `Io` when the handler cannot be installed.
    pub(crate) fn deferred() -> Result<Self> {
        let received = Arc::new(AtomicUsize::new(0));
        for signal in ENDING {
            signal_hook::flag::register_usize(signal, Arc::clone(&received), signal as usize)
                .map_err(|error| Error::io("handling signals", &error))?;
        }
        Ok(Self(received))
    }

    /// The number of the received signal; zero before a signal arrives.
    pub(crate) fn number(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.0)
    }

    pub(crate) fn received(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Ends this process by the received signal's default action, so that its parent sees the signal. Does nothing
    /// without a signal.
    pub(crate) fn raise(&self) {
        if let Some(signal) = i32::try_from(self.0.load(Ordering::Relaxed)).ok().filter(|&signal| signal != 0) {
            // The default action of these signals ends the process, so this does not return.
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    }
}
