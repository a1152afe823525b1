//! Reports on standard error when the daemon does not answer a waiting command.

use crate::output::{printable, report};
use crate::waiting::REPORT_AFTER;
use cotensor::core::ErrorKind;
use cotensor::memory::process::state;
use cotensor_client::protocol::{Empty, GetStatus, Ping};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

/// The time before the first check, and the time-out of each check.
const CHECK_TIMEOUT: Duration = Duration::from_millis(REPORT_AFTER.as_millis() as u64 / 2);
/// Maximum interval between checks; the interval doubles.
const CHECK_INTERVAL_MAX: Duration = Duration::from_secs(60);

/// Stops the checks when dropped.
pub(crate) struct Watchdog(Arc<()>);

impl Watchdog {
    /// Continues the checks until the process ends.
    pub(crate) fn keep(self) {
        std::mem::forget(self.0);
    }
}

/// Reports once on standard error when the daemon at `socket` accepts connections but does not answer, or when its model process
/// is stopped. A missing daemon is not reported: connecting to it fails with an error.
pub(crate) fn start(socket: PathBuf) -> Watchdog {
    let alive = Arc::new(());
    let watched = Arc::downgrade(&alive);
    let check = move || {
        let mut interval = CHECK_TIMEOUT;
        loop {
            std::thread::sleep(interval);
            let found = obstacle(&socket);
            if watched.strong_count() == 0 {
                return;
            }
            if let Some(found) = found {
                return report(&printable(&format!("{}: {found}; waiting", socket.display())));
            }
            interval = (interval * 2).min(CHECK_INTERVAL_MAX);
        }
    };
    // Without a thread, commands wait without this report.
    drop(std::thread::Builder::new().name("watchdog".to_owned()).stack_size(128 << 10).spawn(check));
    Watchdog(alive)
}

/// What keeps the daemon from its work.
fn obstacle(socket: &Path) -> Option<String> {
    if is_unresponsive(socket) {
        return Some("the daemon does not answer (it is stopped or overloaded); `cotensor stop` ends it".to_owned());
    }
    let connection = cotensor_client::connect(socket, Box::new(|_, _, _| {})).ok()?;
    let status = connection.call::<GetStatus>(&Empty {}, Vec::new(), Some(CHECK_TIMEOUT)).ok()?.0;
    let models = status.models.filter(|pid| state(*pid) == Some('T'))?;
    Some(format!("the model process {models} is stopped; `kill -CONT {models}` continues it"))
}

/// Whether a listening daemon does not answer a ping on a new connection.
pub(crate) fn is_unresponsive(socket: &Path) -> bool {
    let (pinged, answer) = channel();
    let socket = socket.to_path_buf();
    let ping = move || {
        let Ok(connection) = cotensor_client::connect(&socket, Box::new(|_, _, _| {})) else { return };
        let answered = connection.call::<Ping>(&Empty {}, Vec::new(), Some(CHECK_TIMEOUT));
        let _ = pinged.send(answered.is_err_and(|error| error.kind() == ErrorKind::TimedOut));
    };
    // The system makes a connection wait while the daemon's queue of them is full.
    if std::thread::Builder::new().name("ping".to_owned()).stack_size(128 << 10).spawn(ping).is_err() {
        return false;
    }
    match answer.recv_timeout(CHECK_TIMEOUT * 2) {
        Ok(unresponsive) => unresponsive,
        Err(error) => error == std::sync::mpsc::RecvTimeoutError::Timeout,
    }
}
