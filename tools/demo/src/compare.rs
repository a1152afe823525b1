//! Compares the variants, and derives the possible savings.

use crate::comparison::{Comparison, Cost, Scenario};
use crate::measure::Progress;
use crate::options::DemoOptions;
use crate::savings::{Avoidable, MemoryParts, TimeParts, efficiency, max_abs_diff};
use crate::scenario::{Scenario as Definition, materialize};
use crate::variants::{Variant, Variants, measure};
use crate::worker_report::WeightBytes;
use cotensor::core::{Error, Result};
use std::sync::atomic::Ordering;

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
            let label = format!("generating seeded weights of {}", definition.model);
            let made = |done, total| {
                progress.step(done, total, &label);
                options.stop.load(Ordering::Relaxed) == 0
            };
            (materialize(definition.model, &options.cache.join("models"), &made)?, "seeded")
        }
    };
    let variants = measure(definition, &folder, options, progress)?;
    let (without, with) = (variants.without.cost(), variants.with.cost());
    let (base, shared) = (variants.without.median(), variants.with.median());
    let bytes = shared.weights.ok_or_else(|| Error::invalid("the worker with Cotensor reported no weights"))?;
    let rounds: Vec<_> = variants.without.timed.iter().zip(&variants.mapped.timed).collect();
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
    let runs = [&variants.without, &variants.mapped, &variants.by_hand, &variants.with, &variants.with_cold];
    Ok(Scenario {
        name: definition.name.to_owned(),
        models: vec![definition.model.to_owned()],
        engine: cotensor::model::engine::RtenEngine::describe(),
        hardware: hardware(options.threads),
        weights,
        without,
        mapped: variants.mapped.cost(),
        by_hand: variants.by_hand.cost(),
        onnxruntime: variants.onnxruntime.clone(),
        with,
        with_cold: variants.with_cold.cost(),
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
        max_abs_diff: max_abs_diff(&base.users, runs.into_iter().flat_map(|variant| variant.runs()))?,
        arithmetic: arithmetic(&variants, &bytes, &avoidable, memory_saved),
        answers: shared.users.clone(),
        times_ms: named(&variants)
            .map(|(name, variant)| (name, variant.timed.iter().map(|run| run.time_ms).collect()))
            .to_vec(),
        timelines: named(&variants).map(|(name, variant)| (name, variant.sampled.samples.clone())).to_vec(),
    })
}

fn named(variants: &Variants) -> [(&'static str, &Variant); 5] {
    [
        ("without", &variants.without),
        ("mapped", &variants.mapped),
        ("by_hand", &variants.by_hand),
        ("with", &variants.with),
        ("with_cold", &variants.with_cold),
    ]
}

/// Splits the saved bytes. The memory of `without` contains all weights that the users open, that of `with` only the
/// resident ones. The rest is computation.
fn memory_parts(saved_bytes: i64, weights: &WeightBytes) -> MemoryParts {
    let weights_bytes = weights.opened_bytes as i64 - weights.resident_bytes as i64;
    MemoryParts { weights_bytes, computation_bytes: saved_bytes - weights_bytes }
}

/// The figures behind the ratios, in sentences.
fn arithmetic(variants: &Variants, weights: &WeightBytes, avoidable: &Avoidable, saved: MemoryParts) -> Vec<String> {
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    let (without, with) = (variants.without.cost(), variants.with.cost());
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
            "time: {:.0} ms without sharing, of which {:.0} ms are avoidable: {:.0} opening stages again, {:.0} reading weights that the warm cache contains, {:.0} running stages again, {:.0} preparing inputs again; saved {:.0} ms",
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
