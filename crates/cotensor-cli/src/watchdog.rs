//! Reports on standard error when the daemon does not answer a waiting command.

use crate::output::{printable, report};
use cotensor::core::ErrorKind;
use cotensor_client::protocol::{Empty, Ping};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Time before the first check, and time-out of each check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);
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

/// Reports once on standard error when the daemon at `socket` accepts connections but does not answer. A missing daemon
/// is not reported: connecting to it fails with an error.
pub(crate) fn start(socket: PathBuf) -> Watchdog {
    let alive = Arc::new(());
    let watched = Arc::downgrade(&alive);
    let check = move || {
        let mut interval = CHECK_TIMEOUT;
        loop {
            std::thread::sleep(interval);
            let unresponsive = is_unresponsive(&socket);
            if watched.strong_count() == 0 {
                return;
            }
            if unresponsive {
                let (at, seconds) = (socket.display().to_string(), CHECK_TIMEOUT.as_secs());
                return report(&format!(
                    "{}: the daemon has not answered for {seconds} s (it is stopped or overloaded); waiting",
                    printable(&at)
                ));
            }
            interval = (interval * 2).min(CHECK_INTERVAL_MAX);
        }
    };
    // Without a thread, commands wait without this report.
    drop(std::thread::Builder::new().name("watchdog".to_owned()).stack_size(128 << 10).spawn(check));
    Watchdog(alive)
}

/// Whether a listening daemon does not answer a ping on a new connection.
fn is_unresponsive(socket: &std::path::Path) -> bool {
    let Ok(connection) = cotensor_client::connect(socket, Box::new(|_, _, _| {})) else { return false };
    connection
        .call::<Ping>(&Empty {}, Vec::new(), Some(CHECK_TIMEOUT))
        .is_err_and(|error| error.kind() == ErrorKind::TimedOut)
}
