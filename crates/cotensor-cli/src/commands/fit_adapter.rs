use super::local::runtime_in;
use crate::args::FitAdapterArgs;
use crate::launch::Program;
use crate::output::{Steps, print, print_json};
use crate::table::{Table, plain};
use cotensor::core::{Error, Result};
use cotensor::model::adapter::{Adapter, AdapterInfo, Encoder};
use cotensor::{Samples, fit_adapter as fit, save_adapter};
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;

#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    info: &'a AdapterInfo,
    inputs: usize,
    outputs: usize,
    /// The name of the published tensor; only with --daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    tensor: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a Path>,
}

pub(crate) fn fit_adapter(args: &FitAdapterArgs, program: &Program) -> Result<()> {
    if let Some(file) = args.output.as_deref().filter(|file| file.extension().is_none_or(|end| end != "safetensors")) {
        let message = format!("{} does not end with .safetensors", file.display());
        return Err(Error::invalid(message).in_field("--output"));
    }
    let samples = Samples::open(&args.data).map_err(|error| error.in_field("--data"))?;
    let runtime = runtime_in(&args.runtime, program, "cotensor fit-adapter")?;
    let (source, target) = (runtime.open(&args.from)?, runtime.open(&args.to)?);
    let holder = runtime.store().holder("fit-adapter");
    let steps = Steps::expecting(samples.len() as u64);
    let adapter = fit(&source, &target, &samples, &holder, &mut |done, all| {
        steps.next(&format!("sample {done} of {all}"));
    });
    steps.finish();
    let adapter = adapter?;
    if let Some(file) = &args.output {
        save_adapter(&adapter, file)?;
    }
    let tensor = if args.runtime.place.daemon {
        Some(adapter.publish(&**runtime.store(), &holder)?.name().to_owned())
    } else {
        None
    };
    let (inputs, outputs) = (adapter.map.inputs(), adapter.map.outputs());
    let report = Report { info: &adapter.info, inputs, outputs, tensor, file: args.output.as_deref() };
    if args.runtime.common.json { print_json(&report) } else { print(&text(&adapter, &report)) }
}

fn text(adapter: &Adapter, report: &Report<'_>) -> String {
    let AdapterInfo { source, target, quality, samples, .. } = &adapter.info;
    let end = |end: &Encoder| format!("{} of {} (space {})", end.stage, plain(&end.model), end.space);
    let mut table = Table::new(&[false, true, true], &["held-out rows", "adapter", "mean prediction"]);
    table.row(["R²".to_owned(), format!("{:.4}", quality.r2), format!("{:.4}", quality.baseline_r2)]);
    table.row(["cosine".to_owned(), format!("{:.4}", quality.cosine), format!("{:.4}", quality.baseline_cosine)]);
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{} -> {}", end(source), end(target));
    let _ = writeln!(
        text,
        "{} x {} weights, strength {:e}, fitted on {} rows of {samples} samples; {} rows held out\n",
        report.inputs, report.outputs, quality.strength, quality.fitted_rows, quality.held_out_rows
    );
    text.push_str(&table.text());
    for place in report.tensor.clone().into_iter().chain(report.file.map(|file| file.display().to_string())) {
        let _ = writeln!(text, "stored as {}", plain(&place));
    }
    text
}
