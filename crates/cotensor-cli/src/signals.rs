//! Signals that ask a command to end, for commands that have something to put back first.

use cotensor::core::{Error, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Those that end a process where nobody handles them.
const ENDING: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// A socket on which a byte comes with each of `signals`.
///
/// # Errors
/// `Io` when the system refuses.
pub(crate) fn bytes(signals: &[i32]) -> Result<UnixStream> {
    let io = |error: std::io::Error| Error::io("watching for signals", &error);
    let (told, tell) = UnixStream::pair().map_err(io)?;
    for &signal in signals {
        signal_hook::low_level::pipe::register(signal, tell.try_clone().map_err(io)?).map_err(io)?;
    }
    Ok(told)
}

/// Has a signal end this process after `put_back` alone, whatever the process waits for.
///
/// # Errors
/// `Io` when the system refuses.
pub(crate) fn put_back_first(put_back: impl FnOnce() + Send + 'static) -> Result<()> {
    // Before the byte, so that its number is there with it.
    let signals = Signals::held_back()?;
    let mut told = bytes(&ENDING)?;
    let end = move || {
        if told.read_exact(&mut [0]).is_ok() {
            put_back();
            signals.obey();
        }
    };
    let waiting = std::thread::Builder::new().name("signals".to_owned()).spawn(end);
    waiting.map(drop).map_err(|error| Error::io("watching for signals", &error))
}

/// Ctrl-C, SIGTERM and SIGHUP end nothing from here on: they are looked for, and obeyed when all is put back.
#[derive(Clone)]
pub(crate) struct Signals(Arc<AtomicUsize>);

impl Signals {
    /// # Errors
    /// `Io` when the system refuses.
    pub(crate) fn held_back() -> Result<Self> {
        let came = Arc::new(AtomicUsize::new(0));
        for signal in ENDING {
            signal_hook::flag::register_usize(signal, Arc::clone(&came), signal as usize)
                .map_err(|error| Error::io("cannot handle signals", &error))?;
        }
        Ok(Self(came))
    }

    /// The number of the signal that came; zero before one does.
    pub(crate) fn number(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.0)
    }

    pub(crate) fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Ends this process, if a signal came, as that does where nobody handles it: whoever started it sees why it ended.
    pub(crate) fn obey(&self) {
        if let Some(signal) = i32::try_from(self.0.load(Ordering::Relaxed)).ok().filter(|&signal| signal != 0) {
            // The signals handled here end a process, so this does not return.
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    }
}
