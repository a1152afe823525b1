//! Prefaults the next block of a series: while a program puts tensors of one length one after another, and each needs a new block because the
//! earlier ones are still used, a thread makes the next block as soon as one is published.

use cotensor_core::sync::{lock, wait, wait_timeout};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// The longest time between two new blocks of a series.
const GAP_MAX: Duration = Duration::from_secs(1);
/// From this many new blocks of one length in a row on, they are a series. The versions of one name take two or three blocks, which are used again.
const SERIES_MIN: usize = 4;
/// The thread ends after this time without a block to make.
const IDLE_MAX: Duration = Duration::from_secs(2);

/// The series of one client. Its thread exists while a series lasts.
#[derive(Clone, Default)]
pub(super) struct NextBlock(Arc<Shared>);

#[derive(Default)]
struct Shared {
    series: Mutex<Series>,
    changed: Condvar,
}

#[derive(Default)]
struct Series {
    /// The length of the tensor in the last new block, and the time.
    last: Option<(usize, Instant)>,
    /// New blocks in a row for that length.
    count: usize,
    /// The length for which a block is made after the publication.
    wanted: Option<usize>,
    /// The length for which a block is being made.
    making: Option<usize>,
    is_running: bool,
}

impl NextBlock {
    /// Before a new block is made for a tensor of `len` bytes: waits for one that is being made, which takes less time than making another one
    /// beside it. Returns whether there was one.
    pub(super) fn wait_for(&self, len: usize) -> bool {
        let mut series = lock(&self.0.series);
        series.wanted.take_if(|wanted| *wanted == len);
        let is_made = series.making == Some(len);
        while series.making == Some(len) {
            series = wait(&self.0.changed, series);
        }
        is_made
    }

    /// A tensor of `len` bytes has taken a block that had no tensor before.
    pub(super) fn took_new(&self, len: usize) {
        let now = Instant::now();
        let mut series = lock(&self.0.series);
        let goes_on = series.last.replace((len, now)).is_some_and(|(last, at)| last == len && now - at < GAP_MAX);
        series.count = if goes_on { series.count + 1 } else { 1 };
        series.wanted = (series.count >= SERIES_MIN).then_some(len);
    }

    /// After the publication of a tensor in a block: lets the next one of a series be made, by `make` for a length.
    pub(super) fn start(&self, make: impl Fn(usize) + Send + 'static) {
        let mut series = lock(&self.0.series);
        if series.wanted.is_none() {
            return;
        }
        if series.is_running {
            return self.0.changed.notify_all();
        }
        let shared = self.clone();
        let thread = std::thread::Builder::new().name("cotensor-prefault".to_owned());
        series.is_running = thread.spawn(move || shared.run(&make)).is_ok();
    }

    fn run(&self, make: &dyn Fn(usize)) {
        let mut series = lock(&self.0.series);
        loop {
            let Some(len) = series.wanted.take() else {
                let (guard, is_late) = wait_timeout(&self.0.changed, series, IDLE_MAX);
                series = guard;
                if is_late && series.wanted.is_none() {
                    series.is_running = false;
                    return;
                }
                continue;
            };
            series.making = Some(len);
            drop(series);
            let made = Made(self);
            make(len);
            drop(made);
            series = lock(&self.0.series);
        }
    }
}

/// Ends the wait for a block that is being made, also after a panic.
struct Made<'a>(&'a NextBlock);

impl Drop for Made<'_> {
    fn drop(&mut self) {
        lock(&self.0.0.series).making = None;
        self.0.0.changed.notify_all();
    }
}
