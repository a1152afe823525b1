//! The daemon's log. A thread of its own writes the lines to standard error: where nobody reads that, lines are lost, and
//! the daemon goes on.

use std::io::{Result, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;
use tracing_subscriber::fmt::MakeWriter;

/// Lines that may wait to be written.
const LINES_MAX: usize = 1024;
/// How long the end of the program waits for its last lines to be written.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(200);

/// Takes lines and never waits.
#[derive(Clone)]
pub(crate) struct Log {
    entries: SyncSender<Entry>,
    /// Lines for which there was no room.
    lost: Arc<AtomicU64>,
}

enum Entry {
    Line(Vec<u8>),
    /// Everything before it is written.
    Flush(SyncSender<()>),
}

impl Log {
    /// A log that is written to `target`.
    ///
    /// # Errors
    /// When the system has no more threads.
    pub(crate) fn to(target: impl Write + Send + 'static) -> Result<Self> {
        let (entries, taken) = sync_channel(LINES_MAX);
        let lost = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&lost);
        let thread = std::thread::Builder::new().name("log".to_owned()).stack_size(128 << 10);
        thread.spawn(move || write(&taken, &counted, target))?;
        Ok(Self { entries, lost })
    }

    /// Waits until what was logged is written, but not long.
    pub(crate) fn settle(&self) {
        let (done, written) = sync_channel(1);
        if self.entries.try_send(Entry::Flush(done)).is_ok() {
            let _ = written.recv_timeout(FLUSH_TIMEOUT);
        }
    }
}

/// Writes a line to standard error, and does not wait long for it to be taken.
pub(crate) fn last_words(line: String) {
    if let Ok(mut log) = Log::to(std::io::stderr()) {
        drop(log.write_all((line + "\n").as_bytes()));
        log.settle();
    }
}

/// Writes what comes. Where writing fails there is nobody to say it to.
fn write(entries: &Receiver<Entry>, lost: &AtomicU64, mut target: impl Write) {
    while let Ok(entry) = entries.recv() {
        match entry {
            Entry::Line(line) => drop(target.write_all(&line)),
            Entry::Flush(done) => {
                drop(target.flush());
                let _ = done.try_send(());
            }
        }
        let count = lost.swap(0, Ordering::Relaxed);
        if count > 0 {
            drop(writeln!(target, "{count} lines of the log were lost, because nobody read standard error"));
        }
    }
}

/// A line comes in one piece.
impl Write for Log {
    fn write(&mut self, line: &[u8]) -> Result<usize> {
        if self.entries.try_send(Entry::Line(line.to_vec())).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Sender, channel};

    /// Says that a write began, and ends it when it may.
    struct Stuck {
        begun: Sender<()>,
        permits: Receiver<()>,
        written: Sender<String>,
    }

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> Result<usize> {
            let _ = self.begun.send(());
            self.permits.recv().map_err(std::io::Error::other)?;
            self.written.send(String::from_utf8_lossy(bytes).into_owned()).map_err(std::io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_nobody_reads_are_lost_and_counted() {
        let ((begun, begins), (permit, permits), (written, read)) = (channel(), channel(), channel());
        let mut log = Log::to(Stuck { begun, permits, written }).unwrap();
        log.write_all(b"first\n").unwrap();
        begins.recv().unwrap();
        for number in 0..LINES_MAX + 100 {
            log.write_all(format!("{number}\n").as_bytes()).unwrap();
        }
        log.settle();
        // Standard error is read again: all that had room comes, and how many lines had none.
        (0..2 * LINES_MAX).for_each(|_| permit.send(()).unwrap());
        let (mut text, last) = (String::new(), format!("\n{}\n", LINES_MAX - 1));
        while !text.ends_with(&last) {
            text += &read.recv().unwrap();
        }
        assert!(text.starts_with("first\n100 lines of the log were lost"), "{}", &text[..100]);
        assert!(!text.contains(&format!("\n{LINES_MAX}\n")));
    }
}
