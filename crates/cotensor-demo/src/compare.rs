//! The three ways side by side, and the arithmetic of what could be saved.

use crate::measure::{Measured, Progress, run};
use crate::scenario::{Scenario as Definition, materialize};
use crate::worker::{Mode, WorkerOptions, WorkerReport};
use cotensor::core::Result;
use cotensor::model::pipeline::UserReport;
use serde::Serialize;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// What the demo is asked for.
#[derive(Clone, Debug)]
pub struct DemoOptions {
    /// The program whose `demo-worker` command runs a scenario.
    pub program: PathBuf,
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

/// One scenario, measured three ways.
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
    /// Through Cotensor.
    pub with: Cost,
    /// Less memory than `without`, in percent.
    pub memory_saved_percent: f64,
    /// Less time than `without`, in percent.
    pub time_saved_percent: f64,
    /// Share of the time of `without` that went into stages that had been opened or run before.
    pub avoidable_time_share: f64,
    /// Weight bytes that `without` holds more than once.
    pub avoidable_weight_bytes: u64,
    /// Time saved over time that could be saved.
    pub time_efficiency: f64,
    /// Memory saved over weight bytes that could be saved.
    pub memory_efficiency: f64,
    /// Where the savings come from: `weights`, `computation`.
    pub saved_by: Vec<&'static str>,
    /// Largest difference of any output from the unshared run.
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

struct Ways {
    watched: Measured,
    timed: Vec<WorkerReport>,
}

impl Ways {
    fn median(&self) -> &WorkerReport {
        let mut order: Vec<&WorkerReport> = self.timed.iter().collect();
        order.sort_by(|a, b| a.time_ms.total_cmp(&b.time_ms));
        order[(order.len() - 1) / 2]
    }

    fn cost(&self) -> Cost {
        Cost { memory_bytes: self.watched.peak_bytes(), time_ms: self.median().time_ms }
    }
}

/// Runs the demo.
///
/// # Errors
/// `Invalid` for an unknown scenario; else what making the models or running a worker gives.
pub fn run_demo(options: &DemoOptions, progress: &dyn Progress) -> Result<Comparison> {
    let definitions: Vec<_> = options.scenarios.iter().map(|name| Definition::named(name)).collect::<Result<_>>()?;
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
            let made =
                |done, total| progress.step(done, total, &format!("making seeded weights of {}", definition.model));
            (materialize(definition.model, &options.cache.join("models"), &made)?, "seeded")
        }
    };
    let [without, mapped, with] = measure(definition, &folder, options, progress)?;
    let (cost_without, cost_with) = (without.cost(), with.cost());
    let base = without.median();
    let shared = with.median();
    let duplicated_ms = duplicated_ms(&base.users);
    let avoidable_weight_bytes = shared.weight_bytes_opened - shared.weight_bytes_unique;
    let saved_bytes = cost_without.memory_bytes as f64 - cost_with.memory_bytes as f64;
    let saved_ms = cost_without.time_ms - cost_with.time_ms;
    let mut saved_by = Vec::new();
    if avoidable_weight_bytes > 0 && saved_bytes > 0.0 {
        saved_by.push("weights");
    }
    if saved_ms > 0.0
        && shared.users.iter().flat_map(|user| &user.stages).any(|stage| !stage.computed && stage.run_ms > 0.0)
    {
        saved_by.push("computation");
    }
    let diff = max_abs_diff(&base.users, &shared.users).max(max_abs_diff(&base.users, &mapped.median().users));
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    let arithmetic = vec![
        format!(
            "weights: all users open {:.1} MiB, {:.1} MiB differ, so {:.1} MiB could be saved; saved {:.1} MiB",
            mib(shared.weight_bytes_opened as f64),
            mib(shared.weight_bytes_unique as f64),
            mib(avoidable_weight_bytes as f64),
            mib(saved_bytes)
        ),
        format!(
            "time: of {:.0} ms without sharing, {duplicated_ms:.0} ms went into opening and running stages again; saved {saved_ms:.0} ms",
            cost_without.time_ms
        ),
        at_least_half("memory", avoidable_weight_bytes as f64 / cost_without.memory_bytes as f64),
        at_least_half("time", duplicated_ms / cost_without.time_ms),
    ];
    Ok(Scenario {
        name: definition.name.to_owned(),
        models: vec![definition.model.to_owned()],
        engine: cotensor::model::engine::RtenEngine::describe(),
        hardware: hardware(options.threads),
        weights,
        without: cost_without,
        mapped: mapped.cost(),
        with: cost_with,
        memory_saved_percent: 100.0 * saved_bytes / cost_without.memory_bytes as f64,
        time_saved_percent: 100.0 * saved_ms / cost_without.time_ms,
        avoidable_time_share: duplicated_ms / cost_without.time_ms,
        avoidable_weight_bytes,
        time_efficiency: saved_ms / duplicated_ms,
        memory_efficiency: saved_bytes / avoidable_weight_bytes as f64,
        saved_by,
        max_abs_diff: diff,
        arithmetic,
        answers: shared.users.clone(),
        times_ms: [(&without, "without"), (&mapped, "mapped"), (&with, "with")]
            .map(|(ways, name)| (name, ways.timed.iter().map(|report| report.time_ms).collect()))
            .to_vec(),
        timelines: vec![
            ("without", without.watched.samples),
            ("mapped", mapped.watched.samples),
            ("with", with.watched.samples),
        ],
    })
}

fn at_least_half(what: &str, avoidable_share: f64) -> String {
    let verdict =
        if avoidable_share >= 0.5 { "so 50 % less is within reach" } else { "so 50 % less is out of reach here" };
    format!("{what}: {:.1} % could be avoided, {verdict}", 100.0 * avoidable_share)
}

/// Watched and timed runs of the three ways, interleaved so that a drift of the machine meets all alike.
fn measure(
    definition: &Definition,
    folder: &Path,
    options: &DemoOptions,
    progress: &dyn Progress,
) -> Result<[Ways; 3]> {
    let total = (Mode::ALL.len() * (options.repeats + 1) + 1) as u64;
    let mut done = 0;
    let mut next = |mode: Mode, watch: bool| {
        let what = format!("{} {}", definition.name, mode.name());
        progress.step(done, total, &what);
        done += 1;
        let worker = WorkerOptions {
            scenario: definition.name.to_owned(),
            mode,
            model: folder.to_path_buf(),
            cache: options.cache.clone(),
            threads: options.threads,
            max_memory_bytes: options.max_memory_bytes,
        };
        run(&options.program, &worker, watch)
    };
    // Fills the weight cache and the page cache; what it takes is not counted for any way.
    next(Mode::With, false)?;
    let mut ways = Vec::new();
    for mode in Mode::ALL {
        ways.push(Ways { watched: next(mode, true)?, timed: Vec::new() });
    }
    for _ in 0..options.repeats {
        for (mode, ways) in Mode::ALL.into_iter().zip(&mut ways) {
            ways.timed.push(next(mode, false)?.report);
        }
    }
    progress.step(total, total, definition.name);
    let mut ways = ways.into_iter();
    Ok(std::array::from_fn(|_| ways.next().expect("one for each mode")))
}

/// Milliseconds that went into opening a graph, or running it on the same input, after another user had done so.
fn duplicated_ms(users: &[UserReport]) -> f64 {
    let (mut opened, mut ran) = (HashSet::new(), HashSet::new());
    let mut duplicated = 0.0;
    for user in users {
        let mut own = HashSet::new();
        for stage in &user.stages {
            if own.insert(&stage.role) && !opened.insert((&user.model, &stage.role)) {
                duplicated += stage.load_ms;
            }
            if !ran.insert((&user.model, &stage.signature)) {
                duplicated += stage.run_ms;
            }
        }
    }
    duplicated
}

fn max_abs_diff(a: &[UserReport], b: &[UserReport]) -> f64 {
    if a.len() != b.len() {
        return f64::INFINITY;
    }
    let of_user = |(a, b): (&UserReport, &UserReport)| {
        if a.outputs.len() != b.outputs.len() {
            return f64::INFINITY;
        }
        a.outputs.iter().zip(&b.outputs).map(|(a, b)| a.max_abs_diff(b)).fold(0.0, f64::max)
    };
    a.iter().zip(b).map(of_user).fold(0.0, f64::max)
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
