//! Telling people that the daemon does not answer, while a command waits for it.

use crate::output::{printable, tell};
use cotensor::core::ErrorKind;
use cotensor_client::protocol::{Empty, Ping};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How long a command has before anybody looks, and the daemon to answer then.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between later looks, growing, at most.
const REST_MAX: Duration = Duration::from_secs(60);

/// Ends the watching when it is dropped.
pub(crate) struct Watch(Arc<()>);

impl Watch {
    /// For as long as this process lives.
    pub(crate) fn for_good(self) {
        std::mem::forget(self.0);
    }
}

/// Says on standard error, once, that the daemon at `socket` does not answer, if it does not. Of one that is not there at all,
/// whoever asks it is told.
pub(crate) fn watch(socket: PathBuf) -> Watch {
    let watch = Arc::new(());
    let watched = Arc::downgrade(&watch);
    let watching = move || {
        let mut rest = PATIENCE;
        loop {
            std::thread::sleep(rest);
            let silent = is_silent(&socket);
            if watched.strong_count() == 0 {
                return;
            }
            if silent {
                let (at, seconds) = (socket.display().to_string(), PATIENCE.as_secs());
                return tell(&format!(
                    "{}: the daemon does not answer (it said nothing for {seconds} s: it is stopped, or very busy); waiting",
                    printable(&at)
                ));
            }
            rest = (rest * 2).min(REST_MAX);
        }
    };
    // Without it, commands wait without a word.
    drop(std::thread::Builder::new().name("silence".to_owned()).stack_size(128 << 10).spawn(watching));
    Watch(watch)
}

/// Whether one that listens does not answer what takes no time, on a connection where nothing is before it.
fn is_silent(socket: &std::path::Path) -> bool {
    let Ok(connection) = cotensor_client::connect(socket, Box::new(|_, _, _| {})) else { return false };
    connection
        .call::<Ping>(&Empty {}, Vec::new(), Some(PATIENCE))
        .is_err_and(|error| error.kind() == ErrorKind::TimedOut)
}
