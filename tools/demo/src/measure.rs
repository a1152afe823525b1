//! Runs a worker in a new process and samples its memory.

use crate::options::WorkerOptions;
use crate::worker_report::WorkerReport;
use cotensor::core::{Error, ErrorKind, Result};
use cotensor::memory::process;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Interval between memory samples.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(10);
/// Time-out of one worker.
pub(crate) const WORKER_TIMEOUT: Duration = Duration::from_secs(600);

/// Receives the progress of long operations.
pub trait Progress: Sync {
    /// Reports that `done` of `total` units are complete, with a short label of the current step.
    fn step(&self, done: u64, total: u64, label: &str);
}

/// One worker's run.
pub(crate) struct Measured {
    pub(crate) report: WorkerReport,
    /// Samples: seconds since the start, and proportional set size in bytes. Empty without sampling.
    pub(crate) samples: Vec<(f64, u64)>,
}

impl Measured {
    /// Peak memory in bytes: the largest of all samples and the final value.
    pub(crate) fn peak_bytes(&self) -> u64 {
        let sampled = self.samples.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
        sampled.max(self.report.pss_bytes)
    }
}

/// Runs `command demo-worker …` until it ends, or until `stop` is nonzero. Sampling slows the worker, so timed runs are
/// not sampled.
pub(crate) fn run(mut command: Command, options: &WorkerOptions, sample: bool, stop: &AtomicUsize) -> Result<Measured> {
    command
        .arg("demo-worker")
        .args(["--scenario", &options.scenario, "--mode", options.mode.name()])
        .args(["--engine", &options.engine, "--threads", &options.threads.to_string()])
        .arg("--cache")
        .arg(&options.cache);
    for folder in &options.models {
        command.arg("--model").arg(folder);
    }
    if let Some(bytes) = options.max_memory_bytes {
        command.args(["--max-memory-bytes", &bytes.to_string()]);
    }
    for file in &options.adapters {
        command.arg("--adapter").arg(file);
    }
    if let Some(folder) = &options.record {
        command.arg("--record").arg(folder);
    }
    let name = format!("the {} worker of {}", options.mode.name(), options.scenario);
    let (text, samples) = run_process(command, &name, sample, stop)?;
    let report = serde_json::from_str(&text)
        .map_err(|error| Error::new(ErrorKind::Io, format!("{name} printed no report: {error}")))?;
    Ok(Measured { report, samples })
}

/// Runs `command`, called `name` in errors, until it ends or `stop` is nonzero. Returns its standard output and, with
/// `sample`, its proportional set size over time as (seconds, bytes).
///
/// # Errors
/// `Io` when the process cannot be started, times out, is stopped or fails; `Invalid` when it exits with code 2. The
/// message contains its standard error.
pub(crate) fn run_process(
    mut command: Command,
    name: &str,
    sample: bool,
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
        if stopped || started.elapsed() > WORKER_TIMEOUT {
            // Best effort: the error below reports the cause.
            let _ = child.kill();
            let _ = child.wait();
            return Err(failed(if stopped { "was stopped" } else { "took too long" }));
        }
        if sample && let Ok(bytes) = process::pss_bytes(child.id()) {
            samples.push((started.elapsed().as_secs_f64(), bytes));
        }
        std::thread::sleep(SAMPLE_INTERVAL);
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
