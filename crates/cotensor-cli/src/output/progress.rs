//! Progress on standard error: a bar on a terminal, plain lines otherwise.

use super::standard::report;
use super::text::printable;
use crate::terminal::takes_escapes;
use cotensor::core::sync::lock;
use cotensor_demo::Progress;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{Read, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Progress is shown for files of at least this size.
const PROGRESS_BYTES_MIN: u64 = 64 << 20;
/// Maximum number of bytes between two updates of the progress.
const UPDATE_BYTES: usize = 4 << 20;

/// Progress of reading or writing files, shown on a terminal for large files only.
pub(crate) struct FileProgress {
    steps: Option<Steps>,
    label: String,
    total: u64,
    done: u64,
}

impl FileProgress {
    /// Progress over `total` bytes.
    pub(crate) fn new(total: u64, label: String) -> Self {
        let steps = (total >= PROGRESS_BYTES_MIN && takes_escapes(&std::io::stderr())).then(Steps::new);
        Self { steps, label, total, done: 0 }
    }

    fn add(&mut self, bytes: usize) {
        self.done += bytes as u64;
        if let Some(steps) = &self.steps {
            steps.step(self.done, self.total, &self.label);
        }
    }
}

/// A reader or writer that reports its progress.
pub(crate) struct Tracked<F> {
    pub(crate) file: F,
    pub(crate) progress: FileProgress,
}

impl<R: Read> Read for Tracked<R> {
    fn read(&mut self, target: &mut [u8]) -> std::io::Result<usize> {
        let len = target.len().min(UPDATE_BYTES);
        let read = self.file.read(&mut target[..len])?;
        self.progress.add(read);
        Ok(read)
    }
}

impl<W: Write> Write for Tracked<W> {
    fn write(&mut self, source: &[u8]) -> std::io::Result<usize> {
        let written = self.file.write(&source[..source.len().min(UPDATE_BYTES)])?;
        self.progress.add(written);
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

/// Shows the progress of steps: a bar on a terminal, lines otherwise.
pub(crate) struct Steps {
    bar: Option<ProgressBar>,
    lines: Mutex<Lines>,
    /// Number of steps started by [`Steps::next`].
    started: AtomicU64,
    /// Number of steps expected.
    expected: u64,
}

impl Steps {
    /// Progress that the caller reports by [`Progress::step`].
    pub(crate) fn new() -> Self {
        Self::expecting(0)
    }

    /// Progress over about `expected` calls of [`Steps::next`].
    pub(crate) fn expecting(expected: u64) -> Self {
        let bar = takes_escapes(&std::io::stderr()).then(|| {
            let style = ProgressStyle::with_template("{bar:30} {percent:>3} % {msg} ({elapsed})");
            ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        Self { bar, lines: Mutex::default(), started: AtomicU64::new(0), expected }
    }

    /// Starts the next step.
    pub(crate) fn next(&self, what: &str) {
        let before = self.started.fetch_add(1, Ordering::Relaxed);
        self.step(before, self.expected.max(before + 1), what);
    }

    /// Removes the bar, so that results can be printed.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Progress for Steps {
    fn step(&self, done: u64, total: u64, what: &str) {
        let what = &*printable(what);
        match &self.bar {
            Some(bar) => {
                bar.set_length(total);
                bar.set_position(done);
                bar.set_message(what.to_owned());
            }
            None => {
                let line = lock(&self.lines).line(done, total, what);
                if let Some(line) = line {
                    report(&line);
                }
            }
        }
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.finish();
    }
}

/// The last printed line. A line is printed for every new step, and for every further 10 % of a step.
#[derive(Default)]
struct Lines {
    what: String,
    tenths: u64,
}

impl Lines {
    fn line(&mut self, done: u64, total: u64, what: &str) -> Option<String> {
        let tenths = 10 * done / total.max(1);
        if self.what != what {
            what.clone_into(&mut self.what);
            self.tenths = tenths;
            return Some(what.to_owned());
        }
        // Threads may report their parts out of order.
        if tenths <= self.tenths {
            return None;
        }
        self.tenths = tenths;
        Some(format!("{what}: {} %", 10 * tenths))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_printed_per_step_and_per_ten_percent() {
        let mut lines = Lines::default();
        let mut line = |done, what: &str| lines.line(done, 200, what);
        assert_eq!(line(0, "making").as_deref(), Some("making"));
        assert_eq!(line(19, "making"), None);
        assert_eq!(line(45, "making").as_deref(), Some("making: 20 %"));
        assert_eq!(line(40, "making"), None);
        assert_eq!(line(200, "making").as_deref(), Some("making: 100 %"));
        assert_eq!(line(1, "running").as_deref(), Some("running"));
        assert_eq!(lines.line(1, 0, "empty").as_deref(), Some("empty"));
    }
}
