//! Compares the variants, and derives the possible savings.

use crate::comparison::{Comparison, Cost, Entry, Scenario, SharedStage};
use crate::engine::Chosen;
use crate::measure::Progress;
use crate::options::{DemoOptions, Mode};
use crate::processes::{self, Setting};
use crate::savings::{Avoidable, MemoryParts, TimeParts, efficiency, max_abs_diff};
use crate::scenario::{Claim, Scenario as Definition, materialize};
use crate::variants::{Variant, Variants, measure};
use crate::worker_report::{Continued, WeightBytes, WorkerReport};
use cotensor::core::{Error, Result};
use cotensor::model::ModelFolder;
use cotensor::model::family::family_of;
use cotensor::model::pipeline::UserReport;
use cotensor::model::preprocess::{JSON_BYTES_MAX, ModelFiles};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// The origin of weights.
const SEEDED: &str = "seeded";
const CHECKPOINT: &str = "checkpoint";

/// The share of a stage's weights and of its run that a common first part should save, in percent.
const SHARED_PERCENT_MIN: f64 = 95.0;

const CONFIG: &str = "config.json";

/// Runs the demo.
///
/// # Errors
/// `Invalid` for an unknown scenario; `NotFound` for a missing folder of checkpoints; `Engine` when outputs have no
/// finite difference; the errors of creating models and of running workers; `Io` when the demo is stopped.
pub fn run_demo(options: &DemoOptions, progress: &dyn Progress) -> Result<Comparison> {
    let definitions: Vec<_> = options.scenarios.iter().map(|name| Definition::named(name)).collect::<Result<_>>()?;
    if let Some(models) = options.models.as_ref().filter(|models| !models.is_dir()) {
        return Err(Error::not_found("not a folder").in_file(models).in_field("--models"));
    }
    // Before the first scenario: an engine that is not installed is reported at once.
    let engines: Vec<Chosen> =
        definitions.iter().map(|each| Chosen::of(each.name, &options.engine, each.engine)).collect::<Result<_>>()?;
    let each = definitions.iter().zip(&engines);
    let scenarios = each.map(|(definition, engine)| {
        let models = Models::of(definition, options, progress)?;
        if definition.in_processes {
            compare_processes(definition, engine, &models, options, progress)
        } else {
            compare(definition, engine, &models, options, progress).map(|scenario| Entry::Users(Box::new(scenario)))
        }
    });
    Ok(Comparison { scenarios: scenarios.collect::<Result<_>>()? })
}

/// The models of a scenario.
struct Models {
    folders: Vec<PathBuf>,
    /// The names of their families.
    families: Vec<String>,
    checkpoints: Vec<String>,
    /// Where the weights come from.
    weights: &'static str,
}

impl Models {
    fn of(definition: &Definition, options: &DemoOptions, progress: &dyn Progress) -> Result<Self> {
        let folders = definition.models.iter().map(|model| model_folder(model, options, progress));
        let folders: Vec<(PathBuf, &str)> = folders.collect::<Result<_>>()?;
        let weights = if folders.iter().all(|(_, weights)| *weights == CHECKPOINT) { CHECKPOINT } else { SEEDED };
        let folders: Vec<PathBuf> = folders.into_iter().map(|(folder, _)| folder).collect();
        let families = folders.iter().map(|folder| family_name(folder)).collect::<Result<_>>()?;
        let checkpoints = definition.models.iter().map(|model| (*model).to_owned()).collect();
        Ok(Self { folders, families, checkpoints, weights })
    }
}

fn compare_processes(
    definition: &Definition,
    engine: &Chosen,
    models: &Models,
    options: &DemoOptions,
    progress: &dyn Progress,
) -> Result<Entry> {
    let folder = models.folders.first().ok_or_else(|| Error::invalid("a scenario without models"))?;
    let setting = Setting {
        name: definition.name,
        models: models.families.clone(),
        checkpoints: models.checkpoints.clone(),
        folder,
        weights: models.weights,
        engine: (engine.name, engine.description.clone()),
        hardware: hardware(options.threads),
    };
    processes::compare(setting, options, progress).map(|result| Entry::Processes(Box::new(result)))
}

fn compare(
    definition: &Definition,
    engine: &Chosen,
    models: &Models,
    options: &DemoOptions,
    progress: &dyn Progress,
) -> Result<Scenario> {
    let variants = measure(definition, engine, &models.folders, options, progress)?;
    // Users of different models share no weights, so that their baseline is the one that maps them, too: with the
    // kernels of the run with Cotensor.
    let (baseline, base_variant) = match definition.models {
        [_, _, ..] if !engine.copies_weights() && !definition.is_large => (Mode::Mapped, &variants.mapped),
        _ => (Mode::Without, &variants.without),
    };
    let (without, with) = (base_variant.cost(), variants.with.cost());
    let (base, shared) = (base_variant.median(), variants.with.median());
    let bytes = shared.weights.ok_or_else(|| Error::invalid("the worker with Cotensor reported no weights"))?;
    let rounds: Vec<_> = variants.without.timed.iter().zip(&variants.mapped.timed).collect();
    let rounds = if baseline == Mode::Without { rounds } else { Vec::new() };
    let replaced: Vec<(&str, &str)> = variants.fits.iter().map(|fit| (fit.user.as_str(), fit.role.as_str())).collect();
    let continued = shared.continued.iter().map(|stage| (stage.user.as_str(), stage.role.as_str()));
    let not_run: Vec<(&str, &str)> = replaced.iter().copied().chain(continued).collect();
    let avoidable = Avoidable::of(base, &rounds, &not_run).and_parts_of_graphs(base, shared, &replaced);
    let shared_stages: Vec<SharedStage> =
        shared.continued.iter().map(|stage| shared_stage(stage, base, shared)).collect();
    let replaced_bytes: u64 = variants.fits.iter().map(|fit| fit.replaced_weight_bytes).sum();
    let opened_bytes = match baseline {
        // Two graphs of a model map the same file once.
        Mode::Mapped => bytes.unique_bytes + replaced_bytes,
        _ => bytes.opened_bytes + replaced_bytes,
    };
    let bytes = WeightBytes { opened_bytes, ..bytes };
    let avoidable_weight_bytes = bytes.opened_bytes - bytes.unique_bytes;
    let saved_bytes = without.memory_bytes as i64 - with.memory_bytes as i64;
    let saved_ms = without.time_ms - with.time_ms;
    // Weights in memory without sharing: all that the users open, or the pages of mapped files that were read.
    let base_weight_bytes = match base_variant.sampled.report.mapped_resident_bytes {
        Some(resident) if baseline == Mode::Mapped => resident,
        _ => bytes.opened_bytes,
    };
    let memory_saved = memory_parts(saved_bytes, base_weight_bytes, &bytes);
    let time_saved = TimeParts::of(base).minus(TimeParts::of(shared));
    let reused =
        || shared.users.iter().flat_map(|user| &user.stages).any(|stage| !stage.computed && stage.run_ms > 0.0);
    let by_computation = reused() && time_saved.computation_ms() > 0.0;
    let saved_by = [("weights", memory_saved.weights_bytes > 0), ("computation", by_computation)];
    let memory_saved_percent = 100.0 * saved_bytes as f64 / without.memory_bytes as f64;
    let time_saved_percent = 100.0 * saved_ms / without.time_ms;
    // A user of another model's encoder has an approximate answer.
    let exact = |users: &[UserReport]| {
        let own = users.iter().filter(|user| replaced.iter().all(|(name, _)| *name != user.user));
        own.cloned().collect::<Vec<_>>()
    };
    let runs = named(&variants).into_iter().flat_map(|(_, variant)| variant.runs()).map(exact).collect::<Vec<_>>();
    Ok(Scenario {
        name: definition.name.to_owned(),
        models: models.families.clone(),
        checkpoints: models.checkpoints.clone(),
        baseline: baseline.name(),
        engine: engine.description.clone(),
        hardware: hardware(options.threads),
        weights: models.weights,
        without: variants.without.cost(),
        mapped: variants.mapped.cost(),
        by_hand: variants.by_hand.cost(),
        onnxruntime: variants.onnxruntime.clone(),
        with,
        with_cold: variants.with_cold.as_ref().map(Variant::cost),
        memory_saved_percent,
        time_saved_percent,
        why_short: match definition.claim {
            Some(claim) => {
                why_short(claim, (memory_saved_percent, time_saved_percent), without, replaced_bytes, &avoidable)
            }
            None => shared_stages.iter().find_map(too_little),
        },
        shared_stages,
        claim: definition.claim,
        adapters: variants.fits.clone(),
        memory_saved,
        time_saved,
        avoidable_time_share: avoidable.total_ms() / without.time_ms,
        avoidable_time: avoidable,
        avoidable_weight_bytes,
        time_efficiency: efficiency(saved_ms, avoidable.total_ms()),
        memory_efficiency: efficiency(saved_bytes as f64, avoidable_weight_bytes as f64),
        saved_by: saved_by.into_iter().filter_map(|(name, counts)| counts.then_some(name)).collect(),
        max_abs_diff: max_abs_diff(&exact(&base.users), runs.iter().map(Vec::as_slice))?,
        arithmetic: arithmetic(&variants, (without, with), &bytes, &avoidable, memory_saved),
        answers: shared.users.clone(),
        times_ms: named(&variants)
            .into_iter()
            .map(|(name, variant)| (name, variant.timed.iter().map(|run| run.time_ms).collect()))
            .collect(),
        timelines: named(&variants)
            .into_iter()
            .map(|(name, variant)| (name, variant.sampled.samples.clone()))
            .collect(),
    })
}

/// Why a claim is not reached, as arithmetic; `None` if it is.
fn why_short(
    claim: Claim,
    (memory, time): (f64, f64),
    base: Cost,
    replaced_bytes: u64,
    avoidable: &Avoidable,
) -> Option<String> {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let mut reasons = Vec::new();
    if let Some(claimed) = claim.memory_percent.filter(|claimed| memory < *claimed) {
        reasons.push(format!(
            "memory: {memory:.1} % saved, {claimed:.0} % claimed; the encoders that do not run have {:.0} MiB of weights, \
             of which rows of embeddings that no run reads take no memory on either side, and all models together \
             take {:.0} MiB",
            mib(replaced_bytes),
            mib(base.memory_bytes)
        ));
    }
    if let Some(claimed) = claim.time_percent.filter(|claimed| time < *claimed) {
        reasons.push(format!(
            "time: {time:.1} % saved, {claimed:.0} % claimed; {:.0} of {:.0} ms are avoidable ({:.1} %), of which {:.0} ms are \
             the encoders that do not run",
            avoidable.total_ms(),
            base.time_ms,
            100.0 * avoidable.total_ms() / base.time_ms,
            avoidable.replaced_ms
        ));
    }
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

/// The folder of a model: a checkpoint of the user, else made with seeded weights; and which of the two.
fn model_folder(model: &str, options: &DemoOptions, progress: &dyn Progress) -> Result<(PathBuf, &'static str)> {
    let checkpoint = options.models.as_ref().map(|models| models.join(model)).filter(|folder| folder.is_dir());
    if let Some(folder) = checkpoint {
        return Ok((folder, CHECKPOINT));
    }
    let label = format!("generating seeded weights of {model}");
    let made = |done, total| {
        progress.step(done, total, &label);
        options.stop.load(Ordering::Relaxed) == 0
    };
    Ok((materialize(model, &options.cache.join("models"), &made)?, SEEDED))
}

/// The family of the model in a folder, by its configuration.
fn family_name(folder: &Path) -> Result<String> {
    let config = ModelFolder::new(folder).read(CONFIG, JSON_BYTES_MAX)?.unwrap_or_default();
    let config: serde_json::Value = serde_json::from_slice(&config)
        .map_err(|error| Error::corrupt(error.to_string()).in_file(folder.join(CONFIG)))?;
    let model_type = config.get("model_type").and_then(|value| value.as_str()).unwrap_or_default();
    Ok(family_of(model_type)?.name.clone())
}

fn named(variants: &Variants) -> Vec<(&'static str, &Variant)> {
    let mut named = vec![
        ("without", &variants.without),
        ("mapped", &variants.mapped),
        ("by_hand", &variants.by_hand),
        ("with", &variants.with),
    ];
    named.extend(variants.with_cold.as_ref().map(|cold| ("with_cold", cold)));
    named
}

/// The savings of a stage whose first part another model has run, in the runs without and with Cotensor.
fn shared_stage(stage: &Continued, without: &WorkerReport, with: &WorkerReport) -> SharedStage {
    let run_ms = |report: &WorkerReport| -> f64 {
        let stages = report.users.iter().filter(|user| user.user == stage.user).flat_map(|user| &user.stages);
        let parts = stages.filter(|part| part.role == stage.role || part.role == stage.shared_role);
        parts.map(|part| part.run_ms).sum()
    };
    let percent = |part: f64, all: f64| if all > 0.0 { 100.0 * part / all } else { 0.0 };
    let before = run_ms(without);
    SharedStage {
        user: stage.user.clone(),
        role: stage.role.clone(),
        weight_bytes: stage.weight_bytes,
        weights_saved_percent: percent(stage.shared_weight_bytes as f64, stage.weight_bytes as f64),
        run_ms: before,
        run_saved_percent: percent(before - run_ms(with), before),
    }
}

/// Why less of a stage is saved than its first part, as arithmetic; `None` if almost all of it is saved.
fn too_little(stage: &SharedStage) -> Option<String> {
    let SharedStage { role, weights_saved_percent: weights, run_saved_percent: run, .. } = stage;
    (weights.min(*run) < SHARED_PERCENT_MIN).then(|| {
        format!(
            "{weights:.1} % of the weights of {role} and {run:.1} % of its run of {:.0} ms are saved, \
             {SHARED_PERCENT_MIN:.0} % expected; the rest follows the part that both models have",
            stage.run_ms
        )
    })
}

/// Splits the saved bytes. The memory of the baseline contains `base_weight_bytes` of weights, that of `with` the resident
/// ones. The rest is computation.
fn memory_parts(saved_bytes: i64, base_weight_bytes: u64, weights: &WeightBytes) -> MemoryParts {
    let weights_bytes = base_weight_bytes as i64 - weights.resident_bytes as i64;
    MemoryParts { weights_bytes, computation_bytes: saved_bytes - weights_bytes }
}

/// The figures behind the ratios, in sentences.
fn arithmetic(
    variants: &Variants,
    (without, with): (Cost, Cost),
    weights: &WeightBytes,
    avoidable: &Avoidable,
    saved: MemoryParts,
) -> Vec<String> {
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    let duplicated = (weights.opened_bytes - weights.unique_bytes) as f64;
    let by_hand = variants.by_hand.cost();
    let mut lines = vec![
        relative_to("one model by hand", with, by_hand),
        format!(
            "weights: all users open {:.1} MiB, of which {:.1} MiB are unique and {:.1} MiB are duplicates; with Cotensor {:.1} MiB are resident (unread pages stay on disk)",
            mib(weights.opened_bytes as f64),
            mib(weights.unique_bytes as f64),
            mib(duplicated),
            mib(weights.resident_bytes as f64)
        ),
        format!(
            "memory saved: {:.1} MiB of weights, {:.1} MiB of computation (work buffers, minus kept results)",
            mib(saved.weights_bytes as f64),
            mib(saved.computation_bytes as f64)
        ),
        format!(
            "time: {:.0} ms without sharing, of which {:.0} ms are avoidable: {:.0} opening stages again, {:.0} reading weights that the warm cache contains, {:.0} running stages again, {:.0} preparing inputs again, {:.0} encoders that adapters or other models replace; saved {:.0} ms",
            without.time_ms,
            avoidable.total_ms(),
            avoidable.load_again_ms,
            avoidable.first_read_ms,
            avoidable.run_again_ms,
            avoidable.prepare_again_ms,
            avoidable.replaced_ms,
            without.time_ms - with.time_ms
        ),
        at_least_half("memory", duplicated / without.memory_bytes as f64),
        at_least_half("time", avoidable.total_ms() / without.time_ms),
    ];
    if let Some(peer) = &variants.onnxruntime {
        let name = format!("one model by hand on onnxruntime {} (with prepared inputs)", peer.version);
        let cost = Cost { memory_bytes: peer.memory_bytes, time_ms: peer.time_ms };
        lines.insert(1, relative_to(&name, with, cost));
        lines.insert(2, format!("the outputs of onnxruntime differ by at most {:.1e}", peer.max_abs_diff));
    }
    lines
}

/// Cotensor with a warm cache relative to another program, as ratios.
fn relative_to(peer: &str, with: Cost, other: Cost) -> String {
    format!(
        "relative to {peer}: {:.2} times its memory, {:.2} times its time",
        with.memory_bytes as f64 / other.memory_bytes as f64,
        with.time_ms / other.time_ms
    )
}

fn at_least_half(what: &str, avoidable_share: f64) -> String {
    let verdict =
        if avoidable_share >= 0.5 { "so 50 % savings are possible" } else { "so 50 % savings are not possible" };
    format!("{what}: {:.1} % are avoidable, {verdict}", 100.0 * avoidable_share)
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
