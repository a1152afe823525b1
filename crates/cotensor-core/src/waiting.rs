//! Reports of waits that take long.
//!
//! Code that waits for another process makes a [`Waiting`] or a [`WaitClock`] and calls its `check` during the wait. Once the wait takes
//! long, `check` gives the process's reporter a text that names the awaited event and process. Waits for threads of this
//! process are not reported.

use crate::sync::{read, write};
use std::cell::RefCell;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

/// The time after which a wait is reported.
pub const REPORT_AFTER: Duration = Duration::from_secs(2);
/// The most time between two descriptions of a wait. The time doubles from [`REPORT_AFTER`] on.
const INTERVAL_MAX: Duration = Duration::from_secs(60);

/// A report of a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitReport {
    /// For what and for which process the caller waits.
    pub text: String,
    /// Whether the awaited process does what the caller requested. Otherwise the caller did not expect the wait: a process is
    /// stopped, or has what the caller needs.
    pub is_expected: bool,
}

/// Receives the reports of this process.
pub type WaitReporter = Arc<dyn Fn(&WaitReport) + Send + Sync>;

static REPORTER: RwLock<Option<WaitReporter>> = RwLock::new(None);

/// Sets the receiver of this process's reports, and returns the former one. Without one, waits are silent.
///
/// The reporter is called by the waiting thread, which may hold locks of its caller. It must return soon.
pub fn set_wait_reporter(reporter: Option<WaitReporter>) -> Option<WaitReporter> {
    std::mem::replace(&mut *write(&REPORTER), reporter)
}

/// The time of a wait, and its last report.
pub struct WaitClock {
    since: Instant,
    /// The time of the next description, from the beginning of the wait.
    due: Duration,
    reported: Option<WaitReport>,
}

impl Default for WaitClock {
    /// The clock of a wait that begins now.
    fn default() -> Self {
        Self::since(Instant::now())
    }
}

impl WaitClock {
    /// The clock of a wait that began at `since`.
    pub fn since(since: Instant) -> Self {
        Self { since, due: REPORT_AFTER, reported: None }
    }

    /// The time until [`check`](Self::check) has to be called.
    pub fn left(&self) -> Duration {
        self.due.saturating_sub(self.since.elapsed())
    }

    /// Describes the wait if that is due: first after [`REPORT_AFTER`], then in growing intervals. Reports a description that
    /// differs from the last one.
    pub fn check(&mut self, describe: impl FnOnce() -> WaitReport) {
        let waited = self.since.elapsed();
        if waited < self.due {
            return;
        }
        self.due = waited + waited.min(INTERVAL_MAX);
        let Some(reporter) = read(&REPORTER).clone() else { return };
        let report = describe();
        if self.reported.as_ref() != Some(&report) {
            reporter(&report);
            self.reported = Some(report);
        }
    }
}

/// A wait with its description.
pub struct Waiting<'a> {
    clock: RefCell<WaitClock>,
    describe: &'a dyn Fn() -> WaitReport,
}

impl<'a> Waiting<'a> {
    /// A wait that begins now.
    pub fn new(describe: &'a dyn Fn() -> WaitReport) -> Self {
        Self { clock: RefCell::default(), describe }
    }

    /// As [`WaitClock::left`].
    pub fn left(&self) -> Duration {
        self.clock.borrow().left()
    }

    /// As [`WaitClock::check`]. Call it without locks that the description takes.
    pub fn check(&self) {
        self.clock.borrow_mut().check(self.describe);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn long_wait_is_reported_once_for_each_description() {
        let texts = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&texts);
        set_wait_reporter(Some(Arc::new(move |report: &WaitReport| {
            crate::sync::lock(&seen).push(report.text.clone());
        })));
        let step = AtomicUsize::new(0);
        let describe = || {
            // The first two descriptions are equal.
            let text = ["a", "a", "b"][step.fetch_add(1, Ordering::Relaxed)].to_owned();
            WaitReport { text, is_expected: false }
        };
        let mut short = WaitClock::default();
        short.check(describe);
        assert_eq!(step.load(Ordering::Relaxed), 0, "a short wait is silent");
        assert!(short.left() > Duration::ZERO && short.left() <= REPORT_AFTER);
        let before = |seconds| Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
        let mut long = WaitClock::default();
        // The second check comes before it is due.
        for waited in [2, 2, 5, 11] {
            long.since = before(waited);
            long.check(describe);
        }
        assert_eq!((step.load(Ordering::Relaxed), texts.lock().unwrap().join(" ")), (3, "a b".to_owned()));
        set_wait_reporter(None);
        long.since = before(300);
        long.check(describe);
        assert_eq!(step.load(Ordering::Relaxed), 3, "without a reporter, nothing is described");
    }
}
