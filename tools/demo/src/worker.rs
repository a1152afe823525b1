//! One run of one scenario one way, in a process of its own.

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

/// How the users get their models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Every user its own copy, read into memory as the engine does by default.
    Without,
    /// Every user its own copy, weights mapped by the engine.
    Mapped,
    /// One copy for all users, weights mapped by the engine, results used again: a program written by hand.
    ByHand,
    /// Through Cotensor.
    With,
}

impl Mode {
    /// All ways, in the order of the report.
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

/// What a worker is told.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// The scenario's name.
    pub scenario: String,
    /// How.
    pub mode: Mode,
    /// The model's folder.
    pub model: PathBuf,
    /// Where Cotensor keeps its weight cache.
    pub cache: PathBuf,
    /// Threads of the engine; all ways use the same.
    pub threads: usize,
    /// The store's budget in bytes.
    pub max_memory_bytes: Option<u64>,
    /// A folder that the runs of [`Mode::ByHand`] are recorded in, for the same program on another engine.
    pub record: Option<PathBuf>,
}

/// What a worker found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerReport {
    /// Wall time in milliseconds from the start of the program to the last answer, all copies open. Without what private
    /// copies only hash for the report ([`UserReport::report_ms`]).
    pub time_ms: f64,
    /// Proportional set size in bytes at the end, all copies open. The store is in the process and every segment mapped,
    /// so it is all there is.
    pub pss_bytes: u64,
    /// What every user got.
    pub users: Vec<UserReport>,
    /// Milliseconds that each user, in the same order, spent on reading the input's file and the model's config.
    pub open_ms: Vec<f64>,
    /// The weights, for runs with Cotensor, which alone looks at content.
    pub weights: Option<WeightBytes>,
}

/// Bytes of weights in a run.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct WeightBytes {
    /// What all users together open, each copy counted.
    pub opened_bytes: u64,
    /// What differs: held when each content is held once.
    pub unique_bytes: u64,
    /// What of the weight cache is in memory at the end; pages that nobody read are not.
    pub resident_bytes: u64,
}

/// Runs a scenario one way. `started` is when the program started.
///
/// # Errors
/// Whatever opening or running gives.
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

/// Every user opens and runs everything itself.
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

/// One program opens the model once and uses every result again.
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
    // Each user of this run prepares its input itself. A program by hand does that once, so the repetitions do not count.
    report.time_ms -= Avoidable::of(&report, &[]).prepare_again_ms;
    Ok(report)
}

/// The engine of the ways without Cotensor. It skips the check of the graph: the run with Cotensor, which comes first, has
/// made it.
fn plain_engine(options: &WorkerOptions) -> Arc<dyn Engine> {
    Arc::new(RtenEngine::new(Some(options.threads)).trusting_files())
}

/// Every user asks the same runtime.
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

/// All users' runs, and the models, which stay open.
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
    /// The weights of all stages that the users opened; everything is loaded, so this only looks.
    fn weights(&self, cache: &Path) -> Result<WeightBytes> {
        let mut contents = HashMap::new();
        let mut opened_bytes = 0;
        for (user, model) in self.users.iter().zip(&self.models) {
            let roles: BTreeSet<&str> = user.stages.iter().map(|stage| stage.role.as_str()).collect();
            for role in roles {
                // What is no stage of the family is a head.
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

    /// `report_ms` is what went into the report alone.
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
