use super::local::runtime;
use super::pipeline::{Models, in_pipeline, progress};
use super::quantize::{SEEDED, of_outputs};
use crate::args::ExplainArgs;
use crate::output::{print, print_json};
use cotensor::SharingConfig;
use cotensor::core::Result;
use cotensor::model::adapter::AdapterInfo;
use cotensor::model::pipeline::{EncoderUse, Explanation, explain as explain_pipeline, open_pipeline};
use cotensor::model::quantize::{QuantizedWeights, WeightsOrigin};
use std::fmt::Write;
use std::path::Path;

pub(crate) fn explain(args: &ExplainArgs) -> Result<()> {
    let pipeline = open_pipeline(&args.pipeline)?;
    let base = args.pipeline.parent().unwrap_or(Path::new("."));
    let runtime = runtime(&args.common, &args.engine, SharingConfig::default())?;
    // Held, so that `explain` reuses the open models.
    let models = Models::open(&pipeline, base, &runtime)?;
    let steps = progress(&pipeline, &models, &runtime, 0);
    let explanation =
        explain_pipeline(&pipeline, base, &runtime).map_err(|error| in_pipeline(error, &args.pipeline))?;
    steps.finish();
    if args.common.json { print_json(&explanation) } else { print(&text(&explanation)) }
}

/// Bits and errors in one line.
fn weights(quantized: &QuantizedWeights) -> String {
    let QuantizedWeights { stored_bits, run_bits, relative_error, layer_error, errors, held_out, weights } = quantized;
    let mut text = format!("{stored_bits:.2} bits for a weight, {run_bits:.2} in the store; error of weights ");
    match relative_error {
        Some(error) => {
            let _ = write!(text, "{error:.4}");
        }
        None => text.push_str("not measured"),
    }
    if let Some(error) = layer_error {
        let _ = write!(text, ", of the results of layers {error:.4}");
    }
    match errors.output_error {
        Some(error) => {
            let _ = write!(text, ", of outputs {error:.4} on {held_out} held-out samples");
        }
        None => text.push_str(", of outputs not measured"),
    }
    text.push_str(&of_outputs(errors));
    if *weights == Some(WeightsOrigin::Seeded) {
        text.push_str("; ");
        text.push_str(SEEDED);
    }
    text
}

fn text(explanation: &Explanation) -> String {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let mut text = String::new();
    for stage in &explanation.stages {
        let _ = writeln!(
            text,
            "{} / {} ({}): space {}, {:.1} MiB of weights",
            stage.user,
            stage.role,
            stage.model,
            stage.space,
            mib(stage.weight_bytes)
        );
        match stage.shared_with.as_slice() {
            [] => text.push_str("  shared with no other user of this pipeline\n"),
            users => {
                let _ = writeln!(text, "  shared with {}", users.join(", "));
            }
        }
        if let Some(quantized) = &stage.quantized {
            let _ = writeln!(text, "  {}", weights(quantized));
        }
        let _ = writeln!(text, "  runs on {}", stage.engine);
        for reason in &stage.engine_reasons {
            let _ = writeln!(text, "  not on {reason}");
        }
        if let Some(notice) = &stage.engine_notice {
            let _ = writeln!(text, "  slower than it could be: {notice}");
        }
        for line in stage.condition.iter().chain(&stage.not_shared) {
            let _ = writeln!(text, "  {line}");
        }
    }
    for encoder in &explanation.encoders {
        let EncoderUse { user, model, role, source, source_role, adapter } = encoder;
        let _ = writeln!(text, "{user} / {role} ({model}): not loaded; {source_role} of {source} is read instead");
        let how = adapter.as_ref().map_or("both have the same space".to_owned(), AdapterInfo::described);
        let _ = writeln!(text, "  {how}");
    }
    let _ = writeln!(
        text,
        "weights: {:.1} MiB if every user had its own, {:.1} MiB shared",
        mib(explanation.weight_bytes_unshared),
        mib(explanation.weight_bytes_shared)
    );
    text
}
