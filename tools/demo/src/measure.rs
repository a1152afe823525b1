//! Runs a worker in a fresh process and watches its memory from outside.

use crate::worker::{WorkerOptions, WorkerReport};
use cotensor::core::{Error, ErrorKind, Result};
use cotensor::memory::process;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How often a watched worker's memory is read.
const SAMPLE_EVERY: Duration = Duration::from_millis(10);
/// The longest that one worker may take.
pub(crate) const WORKER_TIME_MAX: Duration = Duration::from_secs(600);

/// Told what is going on; long work is never silent.
pub trait Progress: Sync {
    /// A step begins or goes on: `done` of `total`, with a few words.
    fn step(&self, done: u64, total: u64, what: &str);
}

/// One worker's run.
pub(crate) struct Measured {
    pub(crate) report: WorkerReport,
    /// Seconds since the start, proportional set size in bytes; empty when not watched.
    pub(crate) samples: Vec<(f64, u64)>,
}

impl Measured {
    /// Peak memory in bytes: the largest sample, or the end if that is larger.
    pub(crate) fn peak_bytes(&self) -> u64 {
        let sampled = self.samples.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
        sampled.max(self.report.pss_bytes)
    }
}

/// Runs `command demo-worker …` to its end, or until `stop` is not zero. Watching costs the worker time, so runs that are timed are not watched.
pub(crate) fn run(mut command: Command, options: &WorkerOptions, watch: bool, stop: &AtomicUsize) -> Result<Measured> {
    command
        .arg("demo-worker")
        .args(["--scenario", &options.scenario, "--mode", options.mode.name()])
        .args(["--threads", &options.threads.to_string()])
        .arg("--model")
        .arg(&options.model)
        .arg("--cache")
        .arg(&options.cache);
    if let Some(bytes) = options.max_memory_bytes {
        command.args(["--max-memory-bytes", &bytes.to_string()]);
    }
    if let Some(folder) = &options.record {
        command.arg("--record").arg(folder);
    }
    let name = format!("the {} worker of {}", options.mode.name(), options.scenario);
    let (text, samples) = watch_process(command, &name, watch, stop)?;
    let report = serde_json::from_str(&text)
        .map_err(|error| Error::new(ErrorKind::Io, format!("{name} gave no report: {error}")))?;
    Ok(Measured { report, samples })
}

/// Runs `command`, which errors call `name`, to its end or until `stop` is not zero. Gives its standard output and, when
/// watched, its proportional set size over time as (seconds, bytes).
///
/// # Errors
/// `Io` when it cannot be started, takes too long or is stopped, and with the end of its standard error when it fails;
/// `Invalid` when it exits with 2.
pub(crate) fn watch_process(
    mut command: Command,
    name: &str,
    watch: bool,
    stop: &AtomicUsize,
) -> Result<(String, Vec<(f64, u64)>)> {
    let failed = |what: &str| Error::new(ErrorKind::Io, format!("{name} {what}"));
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| Error::io("cannot start a worker", &error).in_file(Path::new(command.get_program())))?;
    let started = Instant::now();
    let mut stdout = child.stdout.take().ok_or_else(|| failed("has no output"))?;
    let mut stderr = child.stderr.take().ok_or_else(|| failed("has no output"))?;
    let output = std::thread::spawn(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text).map(|_| text)
    });
    let complaint = std::thread::spawn(move || {
        let mut text = String::new();
        stderr.read_to_string(&mut text).map(|_| text)
    });
    let mut samples = Vec::new();
    let status = loop {
        if let Some(status) = child.try_wait().map_err(|error| Error::io("cannot wait for a worker", &error))? {
            break status;
        }
        let stopped = stop.load(Ordering::Relaxed) != 0;
        if stopped || started.elapsed() > WORKER_TIME_MAX {
            // Best effort: the error below tells what happened.
            let _ = child.kill();
            let _ = child.wait();
            return Err(failed(if stopped { "was stopped" } else { "took too long" }));
        }
        if watch && let Ok(bytes) = process::pss_bytes(child.id()) {
            samples.push((started.elapsed().as_secs_f64(), bytes));
        }
        std::thread::sleep(SAMPLE_EVERY);
    };
    let text = output.join().ok().and_then(|text| text.ok()).unwrap_or_default();
    if !status.success() {
        let complaint = complaint.join().ok().and_then(|text| text.ok()).unwrap_or_default();
        let kind = if status.code() == Some(2) { ErrorKind::Invalid } else { ErrorKind::Io };
        let complaint = complaint.trim().trim_start_matches("error: ");
        return Err(Error::new(kind, format!("{}: {complaint}", failed("failed").message())));
    }
    Ok((text, samples))
}
