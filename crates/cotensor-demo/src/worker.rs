//! One run of one scenario one way, in a process of its own.

use crate::scenario::Scenario;
use cotensor::core::{Error, Result};
use cotensor::memory::usage;
use cotensor::model::engine::{Engine, FileMode, RtenEngine};
use cotensor::model::model::{Model, StageSource};
use cotensor::model::pipeline::{Pipeline, UserReport, run_user};
use cotensor::store::{EmbeddedStore, Stats, Store};
use cotensor::{LocalOptions, Runtime};
use serde::{Deserialize, Serialize};
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
    /// Through Cotensor.
    With,
}

impl Mode {
    /// The three ways.
    pub const ALL: [Mode; 3] = [Mode::Without, Mode::Mapped, Mode::With];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Without => "without",
            Mode::Mapped => "mapped",
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
    /// Threads of the engine; all three ways use the same.
    pub threads: usize,
    /// The store's budget in bytes.
    pub max_memory_bytes: Option<u64>,
}

/// What a worker found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerReport {
    /// Wall time from the start of the program to the last answer, all copies open.
    pub time_ms: f64,
    /// Proportional set size at the end, all copies open.
    pub pss_bytes: u64,
    /// The kernel's high-water mark of resident memory: a check on the sampled peak.
    pub peak_rss_bytes: u64,
    /// Bytes of segments that no process maps; zero for a store inside the process.
    pub unmapped_bytes: u64,
    /// What every user got.
    pub users: Vec<UserReport>,
    /// Weight bytes that all users together open, each copy counted. Only known with Cotensor, which looks at content.
    pub weight_bytes_opened: u64,
    /// Weight bytes that differ: what is held when each content is held once.
    pub weight_bytes_unique: u64,
    /// The store's counters, for runs with Cotensor.
    pub stats: Option<serde_json::Value>,
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
    let engine: Arc<dyn Engine> = Arc::new(RtenEngine::new(Some(options.threads)));
    let holders = EmbeddedStore::builder().build();
    let mut users = Vec::new();
    let mut open = Vec::new();
    for user in &pipeline.users {
        let inputs = scenario.inputs(&options.cache)?;
        let model = Model::open(Path::new(&user.model), StageSource::Private(Arc::clone(&engine), mode))?;
        users.push(run_user(&model, user, &inputs, &holders.holder(&user.name))?);
        open.push(model);
    }
    report(users, started, None, (0, 0))
}

/// Every user asks the same runtime.
fn shared(scenario: &Scenario, pipeline: &Pipeline, options: &WorkerOptions, started: Instant) -> Result<WorkerReport> {
    let local = LocalOptions {
        cache: Some(options.cache.clone()),
        max_memory_bytes: options.max_memory_bytes,
        threads: Some(options.threads),
        ..LocalOptions::default()
    };
    let runtime = Runtime::local(&local)?;
    let mut users = Vec::new();
    let mut open = Vec::new();
    for user in &pipeline.users {
        let inputs = scenario.inputs(&options.cache)?;
        let model = runtime.open(Path::new(&user.model))?;
        users.push(run_user(&model, user, &inputs, &runtime.store().holder(&user.name))?);
        open.push(model);
    }
    let mut contents = std::collections::HashMap::new();
    let mut opened = 0;
    for user in &users {
        let mut roles: Vec<&str> = user.stages.iter().map(|stage| stage.role.as_str()).collect();
        roles.sort_unstable();
        roles.dedup();
        let model = &open[0];
        for role in roles {
            let stage = if role.starts_with("head") { model.head(role)? } else { model.stage(role)? };
            for &(hash, bytes) in stage.weights() {
                opened += bytes as u64;
                contents.insert(hash, bytes as u64);
            }
        }
    }
    report(users, started, Some(runtime.store().stats()), (opened, contents.values().sum()))
}

fn report(users: Vec<UserReport>, started: Instant, stats: Option<Stats>, weights: (u64, u64)) -> Result<WorkerReport> {
    let time_ms = started.elapsed().as_secs_f64() * 1e3;
    let pid = std::process::id();
    Ok(WorkerReport {
        time_ms,
        pss_bytes: usage::process_pss_bytes(pid)?,
        peak_rss_bytes: usage::process_peak_rss_bytes(pid)?,
        unmapped_bytes: 0,
        users,
        weight_bytes_opened: weights.0,
        weight_bytes_unique: weights.1,
        stats: stats.and_then(|stats| serde_json::to_value(stats).ok()),
    })
}
