//! The variant `by_hand` on onnxruntime, if a Python interpreter can import it.

use crate::measure::run_process;
use crate::options::DemoOptions;
use cotensor::core::{Error, Result};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SCRIPT: &str = include_str!("onnxruntime.py");

/// The result of one model by hand on onnxruntime.
#[derive(Clone, Debug, Serialize)]
pub struct Onnxruntime {
    /// Version of onnxruntime.
    pub version: String,
    /// Peak memory in bytes, including the Python interpreter and NumPy.
    pub memory_bytes: u64,
    /// Wall time in milliseconds from the import of the library to the last answer, median of several processes.
    /// Excludes the preparation of inputs.
    pub time_ms: f64,
    /// Largest difference from the outputs of the embedded engine.
    pub max_abs_diff: f64,
}

/// The output of the script.
#[derive(Deserialize)]
struct Report {
    version: String,
    time_ms: f64,
    pss_bytes: u64,
    max_abs_diff: f64,
}

/// A Python interpreter with onnxruntime, and its runs.
pub(crate) struct Peer<'a> {
    python: PathBuf,
    options: &'a DemoOptions,
    folder: &'a Path,
    reports: Vec<Report>,
    peak_bytes: u64,
}

impl<'a> Peer<'a> {
    /// Uses the interpreter that runs this program, otherwise `python3`; `None` if it cannot import onnxruntime.
    /// `folder` is the folder of a [`Recorder`](super::Recorder).
    pub(crate) fn find(options: &'a DemoOptions, folder: &'a Path) -> Option<Self> {
        let python =
            if options.program_arguments.is_empty() { PathBuf::from("python3") } else { options.program.clone() };
        let mut command = Command::new(&python);
        command.args(["-c", "import numpy, onnxruntime"]);
        let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        let found = status.is_ok_and(|status| status.success());
        found.then_some(Self { python, options, folder, reports: Vec::new(), peak_bytes: 0 })
    }

    /// Runs the script once. A sampled run yields the memory, other runs the time.
    ///
    /// # Errors
    /// `Io` when the script fails or the demo is stopped.
    pub(crate) fn run(&mut self, sampled: bool) -> Result<()> {
        let mut command = Command::new(&self.python);
        command.args(["-c", SCRIPT]).arg(self.folder).arg(self.options.threads.to_string());
        let what = "the program by hand on onnxruntime";
        let (text, samples) = run_process(command, what, sampled, &self.options.stop)?;
        let report: Report = serde_json::from_str(&text)
            .map_err(|error| Error::corrupt(format!("{what} printed no report: {error}")))?;
        if sampled {
            let sampled = samples.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
            self.peak_bytes = sampled.max(report.pss_bytes);
        } else {
            self.reports.push(report);
        }
        Ok(())
    }

    /// The result, after at least one sampled run and one without sampling.
    pub(crate) fn finish(self) -> Option<Onnxruntime> {
        let max_abs_diff = self.reports.iter().map(|report| report.max_abs_diff).fold(0.0, f64::max);
        let mut order = self.reports;
        order.sort_by(|a, b| a.time_ms.total_cmp(&b.time_ms));
        let median = order.len().checked_sub(1)? / 2;
        let Report { version, time_ms, .. } = order.swap_remove(median);
        Some(Onnxruntime { version, memory_bytes: self.peak_bytes, time_ms, max_abs_diff })
    }
}
