//! Runs the variants of a scenario: each once with its memory sampled, and several times for the time, in new
//! processes.

use crate::by_hand::{Onnxruntime, Peer};
use crate::comparison::Cost;
use crate::engine::Chosen;
use crate::measure::{Measured, Progress, run};
use crate::options::{DemoOptions, Mode, WorkerOptions};
use crate::scenario::Scenario;
use crate::temp_folder::{empty_folder, remove_stale};
use crate::worker_report::{Fit, WorkerReport};
use cotensor::core::Result;
use cotensor::model::pipeline::UserReport;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Prefix of the folders of cold runs, below the cache folder.
const COLD_PREFIX: &str = ".cold-";
/// Prefix of the folders of recorded runs, below the cache folder.
const RECORD_PREFIX: &str = ".recorded-";

/// The runs of one variant.
pub(crate) struct Variant {
    /// The run whose memory was sampled, which slows it down.
    pub(crate) sampled: Measured,
    /// The runs without sampling; at least one.
    pub(crate) timed: Vec<WorkerReport>,
}

impl Variant {
    /// The timed run of median time; of two, the faster one.
    pub(crate) fn median(&self) -> &WorkerReport {
        let mut order: Vec<&WorkerReport> = self.timed.iter().collect();
        order.sort_by(|a, b| a.time_ms.total_cmp(&b.time_ms));
        order[(order.len() - 1) / 2]
    }

    pub(crate) fn cost(&self) -> Cost {
        Cost { memory_bytes: self.sampled.peak_bytes(), time_ms: self.median().time_ms }
    }

    /// The user reports of every run.
    pub(crate) fn runs(&self) -> impl Iterator<Item = &[UserReport]> {
        std::iter::once(&self.sampled.report).chain(&self.timed).map(|report| &report.users[..])
    }
}

/// All runs of one scenario.
pub(crate) struct Variants {
    pub(crate) without: Variant,
    pub(crate) mapped: Variant,
    pub(crate) by_hand: Variant,
    pub(crate) with: Variant,
    /// With Cotensor and an empty weight cache; `None` for a scenario without one.
    pub(crate) with_cold: Option<Variant>,
    /// The adapters that users with Cotensor read.
    pub(crate) fits: Vec<Fit>,
    /// The variant `by_hand` on onnxruntime, if a Python interpreter can import it.
    pub(crate) onnxruntime: Option<Onnxruntime>,
}

/// Runs all variants of `scenario` on `engine` and the models in `folders`.
///
/// # Errors
/// The errors of workers; `Io` when a folder cannot be created.
pub(crate) fn measure(
    scenario: &Scenario,
    engine: &Chosen,
    folders: &[PathBuf],
    options: &DemoOptions,
    progress: &dyn Progress,
) -> Result<Variants> {
    remove_stale(&options.cache, COLD_PREFIX)?;
    remove_stale(&options.cache, RECORD_PREFIX)?;
    let recorded = empty_folder(&options.cache, RECORD_PREFIX)?;
    let mut onnxruntime = if scenario.is_large { None } else { Peer::find(options, recorded.path()) };
    let peers = u64::from(onnxruntime.is_some());
    let variants = Mode::ALL.len() as u64;
    // Fitting, two cold runs and one that fills the cache; each variant sampled once and timed in each round.
    let firsts = if scenario.is_large { 2 } else { 4 };
    let total = firsts + variants + peers * 2 + (variants + peers) * options.repeats as u64;
    let mut done = 0;
    let mut step = |label: &str| {
        progress.step(done, total, &format!("{} {label}", scenario.name));
        done += 1;
    };
    let run_with = |adapters: &[PathBuf], mode: Mode, sample: bool, cache: &Path, record: Option<&Path>| {
        let worker = WorkerOptions {
            scenario: scenario.name.to_owned(),
            mode,
            models: folders.to_vec(),
            adapters: adapters.to_vec(),
            cache: cache.to_path_buf(),
            engine: engine.name.to_owned(),
            threads: options.threads,
            max_memory_bytes: options.max_memory_bytes,
            record: record.map(Path::to_path_buf),
        };
        let mut command = Command::new(&options.program);
        command.args(&options.program_arguments);
        run(command, &worker, sample, &options.stop)
    };
    let fits = if scenario.has_adapters()? {
        step("fitting adapters");
        run_with(&[], Mode::Fit, false, &options.cache, None)?.report.fits
    } else {
        Vec::new()
    };
    let adapters: Vec<PathBuf> = fits.iter().map(|fit| fit.file.clone()).collect();
    let run_mode = |mode: Mode, sample: bool, cache: &Path, record: Option<&Path>| {
        run_with(&adapters, mode, sample, cache, record)
    };
    let mut cold = |sample| {
        step("with, first run");
        let cache = empty_folder(&options.cache, COLD_PREFIX)?;
        run_mode(Mode::With, sample, cache.path(), None)
    };
    let with_cold =
        if scenario.is_large { None } else { Some(Variant { sampled: cold(true)?, timed: vec![cold(false)?.report] }) };
    // Once more without a cache, too: it validates the graphs and fills the page cache.
    step("with, filling the weight cache");
    run_mode(Mode::With, false, &options.cache, None)?;
    let mut sampled = |mode: Mode| {
        step(&format!("{}, sampled", mode.name()));
        Ok(Variant { sampled: run_mode(mode, true, &options.cache, None)?, timed: Vec::new() })
    };
    let [mut without, mut mapped] = [sampled(Mode::Without)?, sampled(Mode::Mapped)?];
    let [mut by_hand, mut with] = [sampled(Mode::ByHand)?, sampled(Mode::With)?];
    if let Some(peer) = &mut onnxruntime {
        step("by_hand, recorded for onnxruntime");
        run_mode(Mode::ByHand, false, &options.cache, Some(recorded.path()))?;
        step("by_hand on onnxruntime, sampled");
        peer.run(true)?;
    }
    // Interleaved, so that a drift of the machine's speed affects all variants equally.
    for round in 1..=options.repeats {
        let of = format!("timed ({round} of {})", options.repeats);
        for (mode, variant) in Mode::ALL.into_iter().zip([&mut without, &mut mapped, &mut by_hand, &mut with]) {
            step(&format!("{}, {of}", mode.name()));
            variant.timed.push(run_mode(mode, false, &options.cache, None)?.report);
        }
        if let Some(peer) = &mut onnxruntime {
            step(&format!("by_hand on onnxruntime, {of}"));
            peer.run(false)?;
        }
    }
    progress.step(total, total, &format!("{} done", scenario.name));
    let onnxruntime = onnxruntime.and_then(Peer::finish);
    Ok(Variants { without, mapped, by_hand, with, with_cold, fits, onnxruntime })
}
