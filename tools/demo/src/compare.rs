//! Compares the variants, and derives the possible savings.

use crate::comparison::{Comparison, Entry, Scenario, SharedStage};
use crate::engine::Chosen;
use crate::measure::Progress;
use crate::models::Models;
use crate::options::{DemoOptions, Mode};
use crate::processes::{self, Setting};
use crate::savings::{Avoidable, MemoryParts, TimeParts, efficiency, max_abs_diff};
use crate::scenario::Scenario as Definition;
use crate::sentences::{arithmetic, too_little, why_short};
use crate::variants::{Variant, Variants, measure};
use crate::worker_report::{Continued, WeightBytes, WorkerReport};
use cotensor::core::{Error, Result};
use cotensor::model::pipeline::UserReport;

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
        [_, _, ..] if !engine.copies_weights() => (Mode::Mapped, &variants.mapped),
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

/// Splits the saved bytes. The memory of the baseline contains `base_weight_bytes` of weights, that of `with` the resident
/// ones. The rest is computation.
fn memory_parts(saved_bytes: i64, base_weight_bytes: u64, weights: &WeightBytes) -> MemoryParts {
    let weights_bytes = base_weight_bytes as i64 - weights.resident_bytes as i64;
    MemoryParts { weights_bytes, computation_bytes: saved_bytes - weights_bytes }
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
