//! Runs one variant of one scenario, in a process of its own.

use crate::by_hand::{OneCopy, Recorder};
use crate::engine::{plain, usual_mode};
use crate::fitting::fit_all;
use crate::options::{Mode, WorkerOptions};
use crate::resident::resident_bytes;
use crate::savings::Avoidable;
use crate::scenario::Scenario;
use crate::worker_report::{Continued, WeightBytes, WorkerReport};
use cotensor::core::{Error, Result};
use cotensor::memory::process;
use cotensor::model::engine::{Engine, FileMode};
use cotensor::model::model::{Model, StageSource};
use cotensor::model::pipeline::{ADAPTER, Inputs, Pipeline, StageReport, User, UserReport, inputs_of, run_user};
use cotensor::model::stage::Stage;
use cotensor::store::{Holder, LocalStore, Store};
use cotensor::{LocalOptions, Runtime};
use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Runs one variant of a scenario. `started` is the start time of the program.
///
/// # Errors
/// The errors of opening and running models.
pub fn run_worker(options: &WorkerOptions, started: Instant) -> Result<WorkerReport> {
    let scenario = Scenario::named(&options.scenario)?;
    let mut pipeline = scenario.pipeline()?;
    let mut adapters = options.adapters.iter();
    for user in &mut pipeline.users {
        user.model = options.folder(&user.model)?.display().to_string();
        if let Some(encoder) = &mut user.encoder {
            encoder.model = options.folder(&encoder.model)?.display().to_string();
            encoder.adapter = adapters.next().cloned();
        }
        if options.mode != Mode::With {
            user.encoder = None;
        }
    }
    match options.mode {
        Mode::Without => private(scenario, &pipeline, options, FileMode::Read, started),
        Mode::Mapped => private(scenario, &pipeline, options, FileMode::Map, started),
        Mode::ByHand => by_hand(scenario, &pipeline, options, started),
        Mode::With => shared(scenario, &pipeline, options, started),
        Mode::Fit => {
            let fits = fit_all(scenario, options, &runtime(options)?)?;
            let time_ms = started.elapsed().as_secs_f64() * 1e3;
            Ok(WorkerReport {
                time_ms,
                pss_bytes: 0,
                users: Vec::new(),
                open_ms: Vec::new(),
                fits,
                weights: None,
                continued: Vec::new(),
                mapped_resident_bytes: None,
            })
        }
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
    let engine = plain(&options.engine, Some(options.threads), &options.cache, mode)?;
    let holders = LocalStore::builder().build();
    let open =
        |folder: &Path| Model::open(folder, StageSource::Private(Arc::clone(&engine).into(), mode)).map(Arc::new);
    let run = run_users(scenario, pipeline, options, &*holders, started, open, own_inputs)?;
    let report_ms: f64 = run.users.iter().map(|user| user.report_ms).sum();
    let resident = || options.models.iter().map(|folder| resident_bytes(folder)).sum::<Result<u64>>();
    let mapped_resident_bytes = matches!(mode, FileMode::Map).then(resident).transpose()?;
    Ok(WorkerReport { mapped_resident_bytes, ..run.report(report_ms, None)? })
}

/// One program opens each model once and reuses its results.
fn by_hand(
    scenario: &Scenario,
    pipeline: &Pipeline,
    options: &WorkerOptions,
    started: Instant,
) -> Result<WorkerReport> {
    let recorder = options.record.as_deref().map(|folder| Arc::new(Recorder::new(folder)));
    let mode = usual_mode(&options.engine);
    let engine = plain(&options.engine, Some(options.threads), &options.cache, mode)?;
    let engine: Arc<dyn Engine> = Arc::new(OneCopy::new(engine, recorder.clone()));
    let holders = LocalStore::builder().build();
    let source = || StageSource::Private(Arc::clone(&engine).into(), mode);
    let models = options.models.iter().map(|folder| Model::open(folder, source()).map(Arc::new));
    let models = models.collect::<Result<Vec<_>>>()?;
    let open = |folder: &Path| {
        let model = models.iter().find(|model| model.folder() == folder);
        model.cloned().ok_or_else(|| Error::not_found("no model of the scenario").in_file(folder))
    };
    let run = run_users(scenario, pipeline, options, &*holders, started, open, own_inputs)?;
    recorder.map_or(Ok(()), |recorder| recorder.finish())?;
    let report_ms: f64 = run.users.iter().map(|user| user.report_ms).sum();
    let mut report = run.report(report_ms, None)?;
    // Each user of this run prepares its input. A program by hand does this once, so repetitions are subtracted.
    report.time_ms -= Avoidable::of(&report, &[], &[]).prepare_again_ms;
    Ok(report)
}

/// All users share one runtime.
fn shared(scenario: &Scenario, pipeline: &Pipeline, options: &WorkerOptions, started: Instant) -> Result<WorkerReport> {
    let runtime = runtime(options)?;
    let open = |folder: &Path| runtime.open(folder);
    let inputs = |user: &User, model: &Model, inputs: &Inputs, holder: &Holder| {
        inputs_of(user, model, inputs, Path::new(""), &runtime, holder)
    };
    let run = run_users(scenario, pipeline, options, &**runtime.store(), started, open, inputs)?;
    let weights = run.weights(&options.cache)?;
    let continued = run.continued()?;
    Ok(WorkerReport { continued, ..run.report(0.0, Some(weights))? })
}

fn runtime(options: &WorkerOptions) -> Result<Arc<Runtime>> {
    let local = LocalOptions {
        cache: Some(options.cache.clone()),
        max_memory_bytes: options.max_memory_bytes,
        threads: Some(options.threads),
        // The engine of the variants without Cotensor.
        engine: Some(options.engine.clone()),
        ..LocalOptions::default()
    };
    local.runtime()
}

/// The inputs of a user without another model's encoder.
fn own_inputs(_: &User, _: &Model, inputs: &Inputs, _: &Holder) -> Result<Inputs> {
    Ok(inputs.clone())
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
    inputs_for: impl Fn(&User, &Model, &Inputs, &Holder) -> Result<Inputs>,
) -> Result<Run> {
    let mut run = Run { time_ms: 0.0, users: Vec::new(), open_ms: Vec::new(), models: Vec::new() };
    for user in &pipeline.users {
        let start = Instant::now();
        let inputs = scenario.inputs(&options.cache)?;
        let model = open(Path::new(&user.model))?;
        run.open_ms.push(start.elapsed().as_secs_f64() * 1e3);
        let holder = store.holder(&user.name);
        let inputs = inputs_for(user, &model, &inputs, &holder)?;
        run.users.push(run_user(&model, user, &inputs, &holder)?);
        run.models.push(model);
    }
    run.time_ms = started.elapsed().as_secs_f64() * 1e3;
    Ok(run)
}

impl Run {
    /// Sizes of the weights of all opened stages, which are in `cache`.
    fn weights(&self, cache: &Path) -> Result<WeightBytes> {
        let mut contents = HashMap::new();
        let mut opened_bytes = 0;
        for (user, model) in self.users.iter().zip(&self.models) {
            let roles: BTreeSet<&str> = user.stages.iter().map(|stage| stage.role.as_str()).collect();
            for role in roles {
                let family = model.family();
                if role.starts_with(ADAPTER) {
                    continue;
                }
                if family.stages.iter().filter_map(|def| def.blocks.as_ref()).any(|blocks| blocks.role == role) {
                    // The stage that continues these blocks counts them.
                    continue;
                }
                // A role that is not a stage of the family is a head.
                let of_family = family.stage(role).is_ok();
                let stage = if of_family { model.stage(role)? } else { model.head(role)? };
                let before = stage.before().map_or(&[][..], |(before, _)| before.weights());
                for &(hash, bytes) in stage.weights().iter().chain(before) {
                    opened_bytes += bytes as u64;
                    contents.insert(hash, bytes as u64);
                }
            }
        }
        let unique_bytes = contents.values().sum();
        Ok(WeightBytes { opened_bytes, unique_bytes, resident_bytes: resident_bytes(cache)? })
    }

    /// The stages whose first part another user had run.
    fn continued(&self) -> Result<Vec<Continued>> {
        let mut all = Vec::new();
        for (user, model) in self.users.iter().zip(&self.models) {
            for def in &model.family().stages {
                let Some(blocks) = &def.blocks else { continue };
                let reused = |report: &StageReport| report.role == blocks.role && !report.computed;
                if !user.stages.iter().any(reused) {
                    continue;
                }
                let stage = model.stage(&def.role)?;
                let sum = |stage: &Stage| stage.weights().iter().map(|(_, bytes)| *bytes as u64).sum::<u64>();
                if let Some((before, _)) = stage.before() {
                    all.push(Continued {
                        user: user.user.clone(),
                        role: def.role.clone(),
                        weight_bytes: sum(&stage) + sum(before),
                        shared_weight_bytes: sum(before),
                        shared_role: blocks.role.clone(),
                    });
                }
            }
        }
        Ok(all)
    }

    /// Builds the report; `report_ms` is subtracted from the time.
    fn report(self, report_ms: f64, weights: Option<WeightBytes>) -> Result<WorkerReport> {
        Ok(WorkerReport {
            time_ms: self.time_ms - report_ms,
            pss_bytes: process::pss_bytes(std::process::id())?,
            users: self.users,
            open_ms: self.open_ms,
            fits: Vec::new(),
            weights,
            continued: Vec::new(),
            mapped_resident_bytes: None,
        })
    }
}
