//! The figures behind the ratios, in sentences.

use crate::comparison::{Cost, SharedStage};
use crate::savings::{Avoidable, MemoryParts};
use crate::scenario::Claim;
use crate::variants::Variants;
use crate::worker_report::WeightBytes;

/// The share of a stage's weights and of its run that a common first part should save, in percent.
const SHARED_PERCENT_MIN: f64 = 95.0;

/// Why a claim is not reached, as arithmetic; `None` if it is.
pub(crate) fn why_short(
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

/// Why less of a stage is saved than its first part, as arithmetic; `None` if almost all of it is saved.
pub(crate) fn too_little(stage: &SharedStage) -> Option<String> {
    let SharedStage { role, weights_saved_percent: weights, run_saved_percent: run, .. } = stage;
    (weights.min(*run) < SHARED_PERCENT_MIN).then(|| {
        format!(
            "{weights:.1} % of the weights of {role} and {run:.1} % of its run of {:.0} ms are saved, \
             {SHARED_PERCENT_MIN:.0} % expected; the rest follows the part that both models have",
            stage.run_ms
        )
    })
}

/// The figures behind the ratios, in sentences.
pub(crate) fn arithmetic(
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
