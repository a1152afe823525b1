//! The thread that waits until state has something due. The state decides what is due at which time, as a function of the time that it is given.

use crate::daemon::Daemon;
use cotensor_core::{Error, Result};
use std::sync::Arc;
use std::time::Duration;

impl Daemon {
    /// Starts the thread. It ends when the daemon stops.
    ///
    /// # Errors
    /// `Io` when the system has no more threads.
    pub(crate) fn start_timers(self: &Arc<Self>) -> Result<()> {
        let (daemon, stopping) = (Arc::downgrade(self), self.stopping.subscribe());
        let is_stopping = move || *stopping.borrow();
        let run = move || {
            while !is_stopping()
                && let Some(running) = daemon.upgrade()
            {
                let next = running.run_due();
                drop(running);
                next.map_or_else(std::thread::park, std::thread::park_timeout);
            }
            if let Some(stopping) = daemon.upgrade() {
                let orphans = std::mem::take(&mut *stopping.orphans());
                drop(orphans);
            }
        };
        let thread = std::thread::Builder::new().name("timers".to_owned()).spawn(run);
        let thread = thread.map_err(|error| Error::io("starting a thread", &error))?;
        self.timers.get_or_init(|| thread.thread().clone());
        Ok(())
    }

    /// Runs what is due. Returns the time until more is.
    fn run_due(&self) -> Option<Duration> {
        self.check_left();
        self.check_orphans();
        let left = self.disconnected().next_due();
        let orphans = self.orphans().next_due();
        let next = left.into_iter().chain(orphans).min();
        next.map(|at| at.saturating_sub(self.clock.now()))
    }
}
