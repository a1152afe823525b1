//! Runs one variant of one scenario, in a process of its own.

use crate::by_hand::{OneCopy, Recorder};
use crate::resident::resident_bytes;
use crate::savings::Avoidable;
use crate::scenario::Scenario;
use cotensor::LocalOptions;
use cotensor::core::{Error, Result};
use cotensor::memory::process;
use cotensor::model::engine::{Engine, FileMode, RtenEngine};
use cotensor::model::model::{Model, StageSource};
use cotensor::model::pipeline::{Pipeline, UserReport, run_user};
use cotensor::store::{EmbeddedStore, Store};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;

/// The variants: how the users get their models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Every user opens its own copy, read into memory as the engine does by default.
    Without,
    /// Every user opens its own copy, with weights mapped by the engine.
    Mapped,
    /// One program opens one copy for all users, with mapped weights, and reuses results.
    ByHand,
    /// Through Cotensor.
    With,
}

impl Mode {
    /// All variants, in the order of the report.
    pub const ALL: [Mode; 4] = [Mode::Without, Mode::Mapped, Mode::ByHand, Mode::With];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Without => "without",
            Mode::Mapped => "mapped",
            Mode::ByHand => "by_hand",
            Mode::With => "with",
        }
    }
}

impl FromStr for Mode {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let mode = Mode::ALL.into_iter().find(|mode| mode.name() == name);
        mode.ok_or_else(|| Error::invalid(format!("unknown mode {name:?}")).in_field("--mode"))
    }
}

/// Options of a worker.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// Name of the scenario.
    pub scenario: String,
    /// The variant.
    pub mode: Mode,
    /// Folder of the model.
    pub model: PathBuf,
    /// Folder of the weight cache.
    pub cache: PathBuf,
    /// Number of engine threads; equal for all variants.
    pub threads: usize,
    /// Memory budget of the store, in bytes.
    pub max_memory_bytes: Option<u64>,
    /// Folder in which to record the runs of [`Mode::ByHand`], for another engine.
    pub record: Option<PathBuf>,
}

/// The report of a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerReport {
    /// Wall time in milliseconds from the start of the program to the last answer, with all copies open. Excludes hashing for
    /// the report ([`UserReport::report_ms`]).
    pub time_ms: f64,
    /// Proportional set size in bytes at the end, with all copies open. It is complete, because the store is embedded and every
    /// segment is mapped.
    pub pss_bytes: u64,
    /// Reports of the users.
    pub users: Vec<UserReport>,
    /// Milliseconds for reading the input file and the model's config, for each user in the same order.
    pub open_ms: Vec<f64>,
    /// Sizes of the weights; only for [`Mode::With`], which hashes contents.
    pub weights: Option<WeightBytes>,
}

/// Bytes of weights in a run.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct WeightBytes {
    /// Weights that all users open, counting each copy.
    pub opened_bytes: u64,
    /// Distinct weights.
    pub unique_bytes: u64,
    /// Resident part of the weight cache at the end; unread pages are not resident.
    pub resident_bytes: u64,
}

/// Runs one variant of a scenario. `started` is the start time of the program.
///
/// # Errors
/// The errors of opening and running models.
pub fn run_worker(options: &WorkerOptions, started: Instant) -> Result<WorkerReport> {
    let scenario = Scenario::named(&options.scenario)?;
    let mut pipeline = scenario.pipeline()?;
    for user in &mut pipeline.users {
        user.model = options.model.display().to_string();
    }
    match options.mode {
        Mode::Without => private(scenario, &pipeline, options, FileMode::Read, started),
        Mode::Mapped => private(scenario, &pipeline, options, FileMode::Map, started),
        Mode::ByHand => by_hand(scenario, &pipeline, options, started),
        Mode::With => shared(scenario, &pipeline, options, started),
    }
}

/// Every user opens and runs its own copy.
fn private(
    scenario: &Scenario,
    pipeline: &Pipeline,
    options: &WorkerOptions,
    mode: FileMode,
    started: Instant,
) -> Result<WorkerReport> {
    let engine = plain_engine(options);
    let holders = EmbeddedStore::builder().build();
    let open = |folder: &Path| Model::open(folder, StageSource::Private(Arc::clone(&engine), mode)).map(Arc::new);
    let run = run_users(scenario, pipeline, options, &*holders, started, open)?;
    let report_ms: f64 = run.users.iter().map(|user| user.report_ms).sum();
    run.report(report_ms, None)
}

/// One program opens the model once and reuses its results.
fn by_hand(
    scenario: &Scenario,
    pipeline: &Pipeline,
    options: &WorkerOptions,
    started: Instant,
) -> Result<WorkerReport> {
    let recorder = options.record.as_deref().map(|folder| Arc::new(Recorder::new(folder)));
    let engine: Arc<dyn Engine> = Arc::new(OneCopy::new(plain_engine(options), recorder.clone()));
    let holders = EmbeddedStore::builder().build();
    let model = Arc::new(Model::open(&options.model, StageSource::Private(engine, FileMode::Map))?);
    let run = run_users(scenario, pipeline, options, &*holders, started, |_| Ok(Arc::clone(&model)))?;
    recorder.map_or(Ok(()), |recorder| recorder.finish())?;
    let report_ms: f64 = run.users.iter().map(|user| user.report_ms).sum();
    let mut report = run.report(report_ms, None)?;
    // Each user of this run prepares its input. A program by hand does this once, so repetitions are subtracted.
    report.time_ms -= Avoidable::of(&report, &[]).prepare_again_ms;
    Ok(report)
}

/// The engine of the variants without Cotensor. It skips the validation of the graph, which the preceding run with Cotensor has
/// done.
fn plain_engine(options: &WorkerOptions) -> Arc<dyn Engine> {
    Arc::new(RtenEngine::new(Some(options.threads)).trusting_files())
}

/// All users share one runtime.
fn shared(scenario: &Scenario, pipeline: &Pipeline, options: &WorkerOptions, started: Instant) -> Result<WorkerReport> {
    let local = LocalOptions {
        cache: Some(options.cache.clone()),
        max_memory_bytes: options.max_memory_bytes,
        threads: Some(options.threads),
        ..LocalOptions::default()
    };
    let runtime = local.runtime()?;
    let run = run_users(scenario, pipeline, options, &**runtime.store(), started, |folder| runtime.open(folder))?;
    let weights = run.weights(&options.cache)?;
    run.report(0.0, Some(weights))
}

/// The reports of all users, and the open models.
struct Run {
    time_ms: f64,
    users: Vec<UserReport>,
    open_ms: Vec<f64>,
    models: Vec<Arc<Model>>,
}

fn run_users(
    scenario: &Scenario,
    pipeline: &Pipeline,
    options: &WorkerOptions,
    store: &dyn Store,
    started: Instant,
    open: impl Fn(&Path) -> Result<Arc<Model>>,
) -> Result<Run> {
    let mut run = Run { time_ms: 0.0, users: Vec::new(), open_ms: Vec::new(), models: Vec::new() };
    for user in &pipeline.users {
        let start = Instant::now();
        let inputs = scenario.inputs(&options.cache)?;
        let model = open(Path::new(&user.model))?;
        run.open_ms.push(start.elapsed().as_secs_f64() * 1e3);
        run.users.push(run_user(&model, user, &inputs, &store.holder(&user.name))?);
        run.models.push(model);
    }
    run.time_ms = started.elapsed().as_secs_f64() * 1e3;
    Ok(run)
}

impl Run {
    /// Sizes of the weights of all opened stages.
    fn weights(&self, cache: &Path) -> Result<WeightBytes> {
        let mut contents = HashMap::new();
        let mut opened_bytes = 0;
        for (user, model) in self.users.iter().zip(&self.models) {
            let roles: BTreeSet<&str> = user.stages.iter().map(|stage| stage.role.as_str()).collect();
            for role in roles {
                // A role that is not a stage of the family is a head.
                let of_family = model.family().stage(role).is_ok();
                let stage = if of_family { model.stage(role)? } else { model.head(role)? };
                for &(hash, bytes) in stage.weights() {
                    opened_bytes += bytes as u64;
                    contents.insert(hash, bytes as u64);
                }
            }
        }
        Ok(WeightBytes { opened_bytes, unique_bytes: contents.values().sum(), resident_bytes: resident_bytes(cache)? })
    }

    /// Builds the report; `report_ms` is subtracted from the time.
    fn report(self, report_ms: f64, weights: Option<WeightBytes>) -> Result<WorkerReport> {
        Ok(WorkerReport {
            time_ms: self.time_ms - report_ms,
            pss_bytes: process::pss_bytes(std::process::id())?,
            users: self.users,
            open_ms: self.open_ms,
            weights,
        })
    }
}
