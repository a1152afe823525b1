//! Several processes that run one model at the same time.

use super::worker::Line;
use crate::measure::WORKER_TIMEOUT;
use cotensor::core::{Error, ErrorKind, Result};
use cotensor::model::pipeline::UserReport;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often a wait looks at the request to stop.
const STOP_INTERVAL: Duration = Duration::from_millis(50);

/// Processes that run one model and keep it open. They end when this is dropped.
pub struct Fleet {
    members: Vec<Member>,
    /// The first answer of each process.
    pub first: Vec<UserReport>,
    /// Milliseconds until every process had answered.
    pub first_ms: f64,
    stop: Arc<AtomicUsize>,
}

struct Member {
    child: Child,
    input: ChildStdin,
    /// Lines of standard output, with the time at which each arrived.
    lines: Receiver<(Instant, String)>,
    complaint: Option<JoinHandle<String>>,
}

impl Fleet {
    /// Starts a process for each of `commands`, which run [`run_model_process`](crate::run_model_process), and waits for the
    /// first answer of each. `stop` ends the wait when it is nonzero.
    ///
    /// # Errors
    /// `Io` when a process cannot be started, fails, takes too long or is stopped; `Invalid` when it exits with code 2. The
    /// message contains its standard error.
    pub fn start(commands: Vec<Command>, stop: &Arc<AtomicUsize>) -> Result<Self> {
        let start = Instant::now();
        let members = commands.into_iter().map(Member::start).collect::<Result<Vec<_>>>()?;
        let mut fleet = Self { members, first: Vec::new(), first_ms: 0.0, stop: Arc::clone(stop) };
        let mut last = start;
        for member in &mut fleet.members {
            let (at, line) = member.line(stop)?;
            last = last.max(at);
            match line {
                Line::First(report) => fleet.first.push(*report),
                Line::TimesMs(_) => return Err(Error::corrupt("a process printed times before its first answer")),
            }
        }
        fleet.first_ms = (last - start).as_secs_f64() * 1e3;
        Ok(fleet)
    }

    /// The processes.
    pub fn pids(&self) -> Vec<u32> {
        self.members.iter().map(|member| member.child.id()).collect()
    }

    /// Makes every process compute `count` further answers, all at the same time. Returns their times in milliseconds.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn answer(&mut self, count: usize) -> Result<Vec<f64>> {
        for member in &mut self.members {
            let written = writeln!(member.input, "{count}").and_then(|()| member.input.flush());
            written.map_err(|error| Error::io("writing to a process", &error))?;
        }
        let mut all = Vec::new();
        for member in &mut self.members {
            match member.line(&self.stop)?.1 {
                Line::TimesMs(times) => all.extend(times),
                Line::First(_) => return Err(Error::corrupt("a process printed its first answer twice")),
            }
        }
        Ok(all)
    }
}

impl Member {
    fn start(mut command: Command) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(|error| Error::io("cannot start a process", &error).in_file(Path::new(command.get_program())))?;
        let (Some(input), Some(output), Some(mut errors)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(Error::invalid("a process has no pipes"));
        };
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(std::io::Result::ok) {
                if sender.send((Instant::now(), line)).is_err() {
                    return;
                }
            }
        });
        let complaint = std::thread::spawn(move || {
            let mut text = Vec::new();
            // What was read before an error is shown.
            let _ = errors.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        Ok(Self { child, input, lines, complaint: Some(complaint) })
    }

    /// The next line, with the time at which it arrived.
    fn line(&mut self, stop: &AtomicUsize) -> Result<(Instant, Line)> {
        let failed = |what: &str| Error::new(ErrorKind::Io, format!("a process of the model {what}"));
        let start = Instant::now();
        loop {
            match self.lines.recv_timeout(STOP_INTERVAL) {
                Ok((at, text)) => {
                    let line =
                        serde_json::from_str(&text).map_err(|error| failed(&format!("printed no answer: {error}")))?;
                    return Ok((at, line));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.failure()),
                Err(RecvTimeoutError::Timeout) if stop.load(Ordering::Relaxed) != 0 => {
                    return Err(failed("was stopped"));
                }
                Err(RecvTimeoutError::Timeout) if start.elapsed() > WORKER_TIMEOUT => {
                    return Err(failed("took too long"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// The error of a process that ended.
    fn failure(&mut self) -> Error {
        let invalid = self.child.wait().is_ok_and(|status| status.code() == Some(2));
        let complaint = self.complaint.take().and_then(|reader| reader.join().ok()).unwrap_or_default();
        let complaint = complaint.trim().trim_start_matches("error: ");
        let kind = if invalid { ErrorKind::Invalid } else { ErrorKind::Io };
        Error::new(kind, format!("a process of the model failed: {complaint}"))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // Best effort: the process may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn start(script: &str, stop: usize) -> Error {
        Fleet::start(vec![shell(script)], &Arc::new(AtomicUsize::new(stop))).map(drop).unwrap_err()
    }

    #[test]
    fn failure_has_the_standard_error_of_the_process() {
        let error = start("echo 'error: no such folder' >&2; exit 2", 0);
        assert_eq!(
            (error.kind(), error.message()),
            (ErrorKind::Invalid, "a process of the model failed: no such folder")
        );
        assert_eq!(start("exit 1", 0).kind(), ErrorKind::Io);
        assert!(start("echo nothing; cat", 0).to_string().contains("printed no answer"));
        assert!(start("echo '{\"times_ms\": [1.0]}'; cat", 0).to_string().contains("before its first answer"));
    }

    #[test]
    fn request_to_stop_ends_the_wait() {
        assert!(start("cat", 1).to_string().contains("was stopped"));
    }
}
