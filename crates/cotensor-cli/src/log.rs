//! The daemon's log. A separate thread writes the lines to standard error. When standard error is a full pipe, lines
//! are dropped and the daemon does not block.

use std::io::{Result, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;
use tracing_subscriber::fmt::MakeWriter;

/// Maximum number of queued lines.
const LINES_MAX: usize = 1024;
/// Time-out for writing the queued lines at the end of the program.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(200);

/// A log writer that never blocks.
#[derive(Clone)]
pub(crate) struct Log {
    entries: SyncSender<Entry>,
    /// Number of lines dropped because the queue was full.
    lost: Arc<AtomicU64>,
}

enum Entry {
    Line(Vec<u8>),
    /// A request to confirm that all entries before it are written.
    Flush(SyncSender<()>),
}

impl Log {
    /// Starts a thread that writes the log to `target`.
    ///
    /// # Errors
    /// When the thread cannot be created.
    pub(crate) fn to(target: impl Write + Send + 'static) -> Result<Self> {
        let (entries, taken) = sync_channel(LINES_MAX);
        let lost = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&lost);
        let thread = std::thread::Builder::new().name("log".to_owned()).stack_size(128 << 10);
        thread.spawn(move || write(&taken, &counted, target))?;
        Ok(Self { entries, lost })
    }

    /// Waits until all queued lines are written, for [`FLUSH_TIMEOUT`] at most.
    pub(crate) fn flush_queue(&self) {
        let (done, written) = sync_channel(1);
        if self.entries.try_send(Entry::Flush(done)).is_ok() {
            let _ = written.recv_timeout(FLUSH_TIMEOUT);
        }
    }
}

/// Writes a line to standard error; blocks for [`FLUSH_TIMEOUT`] at most.
pub(crate) fn write_last(line: String) {
    if let Ok(mut log) = Log::to(std::io::stderr()) {
        let _ = log.write_all((line + "\n").as_bytes());
        log.flush_queue();
    }
}

/// Writes entries to `target`. Write errors are ignored: there is no other place to report them.
fn write(entries: &Receiver<Entry>, lost: &AtomicU64, mut target: impl Write) {
    while let Ok(entry) = entries.recv() {
        match entry {
            Entry::Line(line) => drop(target.write_all(&line)),
            Entry::Flush(done) => {
                let _ = target.flush();
                let _ = done.try_send(());
            }
        }
        let count = lost.swap(0, Ordering::Relaxed);
        if count > 0 {
            drop(writeln!(target, "{count} log lines were dropped, because standard error was not read"));
        }
    }
}

/// Each call of `write` gets one complete line.
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

    /// Reports the start of each write, and blocks it until a permit arrives.
    struct Stuck {
        started: Sender<()>,
        permits: Receiver<()>,
        written: Sender<String>,
    }

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> Result<usize> {
            let _ = self.started.send(());
            self.permits.recv().map_err(std::io::Error::other)?;
            self.written.send(String::from_utf8_lossy(bytes).into_owned()).map_err(std::io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn unread_lines_are_dropped_and_counted() {
        let ((started, starts), (permit, permits), (written, read)) = (channel(), channel(), channel());
        let mut log = Log::to(Stuck { started, permits, written }).unwrap();
        log.write_all(b"first\n").unwrap();
        starts.recv().unwrap();
        for number in 0..LINES_MAX + 100 {
            log.write_all(format!("{number}\n").as_bytes()).unwrap();
        }
        log.flush_queue();
        // Standard error is read again: the queued lines arrive, and the number of dropped lines.
        (0..2 * LINES_MAX).for_each(|_| permit.send(()).unwrap());
        let (mut text, last) = (String::new(), format!("\n{}\n", LINES_MAX - 1));
        while !text.ends_with(&last) {
            text += &read.recv().unwrap();
        }
        assert!(text.starts_with("first\n100 log lines were dropped"), "{}", &text[..100]);
        assert!(!text.contains(&format!("\n{LINES_MAX}\n")));
    }
}
