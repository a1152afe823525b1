//! The ways side by side, and the arithmetic of what could be saved.

use crate::by_hand::Onnxruntime;
use crate::measure::Progress;
use crate::savings::{Avoidable, MemoryParts, TimeParts, efficiency, max_abs_diff};
use crate::scenario::{Scenario as Definition, materialize};
use crate::ways::{Ways, measure};
use crate::worker::WeightBytes;
use cotensor::core::{Error, Result};
use cotensor::model::pipeline::UserReport;
use serde::Serialize;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What the demo is asked for.
#[derive(Clone, Debug)]
pub struct DemoOptions {
    /// The program whose `demo-worker` command runs a scenario.
    pub program: PathBuf,
    /// Its arguments before that command, as an interpreter needs them.
    pub program_arguments: Vec<OsString>,
    /// Scenario names, in order.
    pub scenarios: Vec<String>,
    /// Where seeded models and the weight cache are kept.
    pub cache: PathBuf,
    /// A folder with real checkpoints, one folder per model name; seeded weights where it has none.
    pub models: Option<PathBuf>,
    /// Threads of the engine in every run.
    pub threads: usize,
    /// Timed runs of each way; the median counts.
    pub repeats: usize,
    /// The store's budget in bytes.
    pub max_memory_bytes: Option<u64>,
    /// Not zero once the demo has to end early: it then clears away its workers and folders and gives an error.
    pub stop: Arc<AtomicUsize>,
}

/// The whole demo.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// One entry per scenario.
    pub scenarios: Vec<Scenario>,
}

/// Memory and time of one way.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cost {
    /// Peak memory in bytes.
    pub memory_bytes: u64,
    /// Wall time in milliseconds, median of several fresh processes.
    pub time_ms: f64,
}

/// One scenario, measured in all ways.
#[derive(Clone, Debug, Serialize)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// The models that it runs.
    pub models: Vec<String>,
    /// The engine with its version.
    pub engine: String,
    /// Cores, threads and device.
    pub hardware: String,
    /// `seeded` or `checkpoint`.
    pub weights: &'static str,
    /// Every user its own copy.
    pub without: Cost,
    /// Every user its own mapping of the weights.
    pub mapped: Cost,
    /// One model by hand: one program, one mapped copy, results used again.
    pub by_hand: Cost,
    /// The same program on onnxruntime at its default settings; none where no Python interpreter can import it.
    pub onnxruntime: Option<Onnxruntime>,
    /// Through Cotensor, its weight cache warm: an earlier run has put the weights there.
    pub with: Cost,
    /// Through Cotensor with an empty weight cache: the first run ever, which puts the weights there. Timed once.
    pub with_cold: Cost,
    /// Less memory than `without`, in percent.
    pub memory_saved_percent: f64,
    /// Less time than `without`, in percent.
    pub time_saved_percent: f64,
    /// Where the saved memory comes from; adds up to what was saved.
    pub memory_saved: MemoryParts,
    /// Where the saved time comes from; adds up to what was saved.
    pub time_saved: TimeParts,
    /// Share of the time of `without` that went into work that had been done before.
    pub avoidable_time_share: f64,
    /// That time by the kind of work.
    pub avoidable_time: Avoidable,
    /// Weight bytes that `without` holds more than once.
    pub avoidable_weight_bytes: u64,
    /// Time saved over time that could be saved.
    pub time_efficiency: f64,
    /// Memory saved over weight bytes that could be saved.
    pub memory_efficiency: f64,
    /// Where the savings come from: `weights`, `computation`.
    pub saved_by: Vec<&'static str>,
    /// Largest difference of any output of any run from the unshared run.
    pub max_abs_diff: f64,
    /// The figures that the ratios were made of, spelled out.
    pub arithmetic: Vec<String>,
    /// What the users got, through Cotensor.
    pub answers: Vec<UserReport>,
    /// Memory over the watched runs: way, then seconds and bytes.
    pub timelines: Vec<(&'static str, Vec<(f64, u64)>)>,
    /// Every timed run, in milliseconds: way and times.
    pub times_ms: Vec<(&'static str, Vec<f64>)>,
}

/// Runs the demo.
///
/// # Errors
/// `Invalid` for an unknown scenario; `NotFound` when the folder of checkpoints is not there; `Engine` when sharing changes an output in a way that has no size; else what making
/// the models or running a worker gives, also when it is stopped.
pub fn run_demo(options: &DemoOptions, progress: &dyn Progress) -> Result<Comparison> {
    let definitions: Vec<_> = options.scenarios.iter().map(|name| Definition::named(name)).collect::<Result<_>>()?;
    if let Some(models) = options.models.as_ref().filter(|models| !models.is_dir()) {
        return Err(Error::not_found("not a folder").in_file(models).in_field("--models"));
    }
    let scenarios =
        definitions.iter().map(|definition| compare(definition, options, progress)).collect::<Result<_>>()?;
    Ok(Comparison { scenarios })
}

fn compare(definition: &Definition, options: &DemoOptions, progress: &dyn Progress) -> Result<Scenario> {
    let checkpoint =
        options.models.as_ref().map(|models| models.join(definition.model)).filter(|folder| folder.is_dir());
    let (folder, weights) = match checkpoint {
        Some(folder) => (folder, "checkpoint"),
        None => {
            let what = format!("making seeded weights of {}", definition.model);
            let made = |done, total| {
                progress.step(done, total, &what);
                options.stop.load(Ordering::Relaxed) == 0
            };
            (materialize(definition.model, &options.cache.join("models"), &made)?, "seeded")
        }
    };
    let ways = measure(definition, &folder, options, progress)?;
    let (without, with) = (ways.without.cost(), ways.with.cost());
    let (base, shared) = (ways.without.median(), ways.with.median());
    let bytes = shared.weights.ok_or_else(|| Error::invalid("the worker with Cotensor told no weights"))?;
    let rounds: Vec<_> = ways.without.timed.iter().zip(&ways.mapped.timed).collect();
    let avoidable = Avoidable::of(base, &rounds);
    let avoidable_weight_bytes = bytes.opened_bytes - bytes.unique_bytes;
    let saved_bytes = without.memory_bytes as i64 - with.memory_bytes as i64;
    let saved_ms = without.time_ms - with.time_ms;
    let memory_saved = memory_parts(saved_bytes, &bytes);
    let time_saved = TimeParts::of(base).minus(TimeParts::of(shared));
    let reused =
        || shared.users.iter().flat_map(|user| &user.stages).any(|stage| !stage.computed && stage.run_ms > 0.0);
    let by_computation = reused() && time_saved.computation_ms() > 0.0;
    let saved_by = [("weights", memory_saved.weights_bytes > 0), ("computation", by_computation)];
    let runs = [&ways.without, &ways.mapped, &ways.by_hand, &ways.with, &ways.with_cold];
    Ok(Scenario {
        name: definition.name.to_owned(),
        models: vec![definition.model.to_owned()],
        engine: cotensor::model::engine::RtenEngine::describe(),
        hardware: hardware(options.threads),
        weights,
        without,
        mapped: ways.mapped.cost(),
        by_hand: ways.by_hand.cost(),
        onnxruntime: ways.onnxruntime.clone(),
        with,
        with_cold: ways.with_cold.cost(),
        memory_saved_percent: 100.0 * saved_bytes as f64 / without.memory_bytes as f64,
        time_saved_percent: 100.0 * saved_ms / without.time_ms,
        memory_saved,
        time_saved,
        avoidable_time_share: avoidable.total_ms() / without.time_ms,
        avoidable_time: avoidable,
        avoidable_weight_bytes,
        time_efficiency: efficiency(saved_ms, avoidable.total_ms()),
        memory_efficiency: efficiency(saved_bytes as f64, avoidable_weight_bytes as f64),
        saved_by: saved_by.into_iter().filter_map(|(name, counts)| counts.then_some(name)).collect(),
        max_abs_diff: max_abs_diff(&base.users, runs.into_iter().flat_map(|way| way.runs()))?,
        arithmetic: arithmetic(&ways, &bytes, &avoidable, memory_saved),
        answers: shared.users.clone(),
        times_ms: named(&ways).map(|(name, way)| (name, way.timed.iter().map(|run| run.time_ms).collect())).to_vec(),
        timelines: named(&ways).map(|(name, way)| (name, way.watched.samples.clone())).to_vec(),
    })
}

fn named(ways: &Ways) -> [(&'static str, &crate::ways::Way); 5] {
    [
        ("without", &ways.without),
        ("mapped", &ways.mapped),
        ("by_hand", &ways.by_hand),
        ("with", &ways.with),
        ("with_cold", &ways.with_cold),
    ]
}

/// All weights that the users open are in the memory of `without`; of `with`, what is resident. The rest is computation's.
fn memory_parts(saved_bytes: i64, weights: &WeightBytes) -> MemoryParts {
    let weights_bytes = weights.opened_bytes as i64 - weights.resident_bytes as i64;
    MemoryParts { weights_bytes, computation_bytes: saved_bytes - weights_bytes }
}

/// What the ratios were made of, in words.
fn arithmetic(ways: &Ways, weights: &WeightBytes, avoidable: &Avoidable, saved: MemoryParts) -> Vec<String> {
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    let (without, with) = (ways.without.cost(), ways.with.cost());
    let duplicated = (weights.opened_bytes - weights.unique_bytes) as f64;
    let by_hand = ways.by_hand.cost();
    let mut lines = vec![
        beside("one model by hand", with, by_hand),
        format!(
            "weights: all users open {:.1} MiB, {:.1} MiB differ, so {:.1} MiB could be saved; with Cotensor {:.1} MiB are in memory (what nobody reads stays on disk)",
            mib(weights.opened_bytes as f64),
            mib(weights.unique_bytes as f64),
            mib(duplicated),
            mib(weights.resident_bytes as f64)
        ),
        format!(
            "memory saved: {:.1} MiB of weights, {:.1} MiB of computation (work buffers, less the results that are kept)",
            mib(saved.weights_bytes as f64),
            mib(saved.computation_bytes as f64)
        ),
        format!(
            "time: of {:.0} ms without sharing, {:.0} ms could be saved: {:.0} opening stages again, {:.0} reading weights that the warm cache has, {:.0} running stages again, {:.0} preparing inputs again; saved {:.0} ms",
            without.time_ms,
            avoidable.total_ms(),
            avoidable.load_again_ms,
            avoidable.first_read_ms,
            avoidable.run_again_ms,
            avoidable.prepare_again_ms,
            without.time_ms - with.time_ms
        ),
        at_least_half("memory", duplicated / without.memory_bytes as f64),
        at_least_half("time", avoidable.total_ms() / without.time_ms),
    ];
    if let Some(peer) = &ways.onnxruntime {
        let name = format!("one model by hand on onnxruntime {} (its inputs prepared before)", peer.version);
        let cost = Cost { memory_bytes: peer.memory_bytes, time_ms: peer.time_ms };
        lines.insert(1, beside(&name, with, cost));
        lines.insert(2, format!("onnxruntime's outputs differ from these by at most {:.1e}", peer.max_abs_diff));
    }
    lines
}

/// Cotensor with a warm cache beside a peer, as ratios.
fn beside(peer: &str, with: Cost, other: Cost) -> String {
    format!(
        "beside {peer}: {:.2} times its memory, {:.2} times its time",
        with.memory_bytes as f64 / other.memory_bytes as f64,
        with.time_ms / other.time_ms
    )
}

fn at_least_half(what: &str, avoidable_share: f64) -> String {
    let verdict =
        if avoidable_share >= 0.5 { "so 50 % less is within reach" } else { "so 50 % less is out of reach here" };
    format!("{what}: {:.1} % could be avoided, {verdict}", 100.0 * avoidable_share)
}

fn hardware(threads: usize) -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':').map(|(_, name)| name.trim().to_owned()));
    format!(
        "{} ({cores} cores, {threads} engine threads, cpu only)",
        model.unwrap_or_else(|| "unknown processor".to_owned())
    )
}
