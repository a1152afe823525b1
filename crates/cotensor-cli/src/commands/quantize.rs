//! `quantize`: writes a copy of a model whose weights have few bits.

use super::local::show_downloads;
use crate::args::QuantizeArgs;
use crate::output::{Steps, print, print_json};
use crate::signals;
use crate::table::{Table, plain};
use cotensor::Samples;
use cotensor::core::{Result, size};
use cotensor::hub::{Hub, Settings};
use cotensor::model::quantize::{
    GraphReport, ImportOptions, MixedReport, OutputErrors, QuantizeOptions, QuantizeReport, WeightsOrigin,
    check_scheme, import_folder, quantize_folder, work_folder,
};
use cotensor::quant::{QuantSpec, Width};
use cotensor_demo::Progress;
use std::fmt::Write;
use std::path::Path;

pub(crate) fn quantize(args: &QuantizeArgs) -> Result<()> {
    match &args.from {
        Some(from) => import(args, from),
        None => own(args),
    }
}

/// Takes the codes of another program.
fn import(args: &QuantizeArgs, from: &Path) -> Result<()> {
    let options = ImportOptions { from: from.to_path_buf(), activations: args.activations, keep: args.keep.clone() };
    write(args, |folder, progress| import_folder(folder, &args.out, &options, progress))
}

fn own(args: &QuantizeArgs) -> Result<()> {
    check_scheme(args.scheme)?;
    let width = Width::of(args.bits)?;
    let uniform_bits = QuantSpec::new(width, args.group, args.scheme)?.bits_per_weight();
    let is_mixed = args.mixed || args.target_bits.is_some();
    let options = QuantizeOptions {
        width,
        group: args.group,
        scheme: args.scheme,
        rotates: args.rotate,
        activations: args.activations,
        keep: args.keep.clone(),
        mixed_bits: is_mixed.then(|| args.target_bits.unwrap_or(uniform_bits)),
        max_error: args.max_error,
    };
    options.check()?;
    let samples = args.calibrate.as_deref().map(Samples::open).transpose();
    let samples = samples.map_err(|error| error.in_field("--calibrate"))?;
    write(args, |folder, progress| quantize_folder(folder, &args.out, &options, samples.as_ref(), progress))
}

/// Finds the model, calls `make` with its folder, and prints the report.
fn write(
    args: &QuantizeArgs,
    make: impl FnOnce(&Path, &mut dyn FnMut(&str, usize, usize)) -> Result<QuantizeReport>,
) -> Result<()> {
    let hub = Hub::new(Settings::from_env());
    show_downloads(&hub);
    let folder = hub.folder(&args.model, Path::new("."), None)?;
    let work = work_folder(&args.out);
    signals::clean_up_first(move || drop(std::fs::remove_dir_all(work)))?;
    let steps = Steps::new();
    let report = make(&folder, &mut |step, done, all| steps.step(done as u64, all as u64, step));
    steps.finish();
    let report = report?;
    if args.json { print_json(&report) } else { print(&text(&report, &args.out)) }
}

fn text(report: &QuantizeReport, out: &Path) -> String {
    let mut text = String::new();
    for graph in &report.graphs {
        add_graph(&mut text, graph);
    }
    if let Some(mixed) = &report.mixed {
        text.push_str(&of_mixed(mixed));
    }
    if let Some(engine) = &report.engine {
        let _ = writeln!(text, "errors of results and outputs are those on {engine}");
    }
    if !report.left_out.is_empty() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "not copied: {}", plain(&report.left_out.join(", ")));
    }
    let _ = writeln!(text, "written to {}", plain(&out.display().to_string()));
    text
}

/// A notice for weights that are not trained.
pub(super) const SEEDED: &str = "the weights are like random numbers: these errors say nothing about a trained model";

/// What is known of next tokens and embeddings.
pub(super) fn of_outputs(errors: &OutputErrors) -> String {
    let OutputErrors { divergence, top1, cosine, neighbours, tokens, .. } = errors;
    let mut text = tokens.map_or_else(String::new, |tokens| format!(" ({tokens} tokens)"));
    if let Some((divergence, top1)) = divergence.zip(*top1) {
        let _ = write!(text, "; of next tokens: divergence {divergence:.4} nats, {:.1} % equal", 100.0 * top1);
    }
    if let Some(cosine) = cosine {
        let _ = write!(text, "; of embeddings: cosine {cosine:.4}");
    }
    if let Some(neighbours) = neighbours {
        let _ = write!(text, ", {neighbours:.1} of 10 neighbours stay");
    }
    text
}

/// What the widths gave.
fn of_mixed(mixed: &MixedReport) -> String {
    let (measure, own, other) = match mixed.divergence {
        Some(divergence) => ("divergence of next tokens", Some(divergence), mixed.uniform_divergence),
        None => ("error of outputs", mixed.output_error, mixed.uniform_output_error),
    };
    let shown = |error: Option<f64>| error.map_or_else(|| "not measured".to_owned(), |error| format!("{error:.4}"));
    let uniform = match mixed.uniform_bits {
        Some(bits) => format!("{bits:.2} bits with one width: {}", shown(other)),
        None => "no single width has so few bits".to_owned(),
    };
    let written = if mixed.is_mixed { "mixed widths" } else { "one width" };
    let own = shown(own);
    let by_layers = if mixed.runs == 0 {
        "no run of a graph was small enough to be kept: the errors of layers alone chose the widths\n"
    } else {
        ""
    };
    format!("{measure}, {:.2} bits with mixed widths: {own}; {uniform}. Written: {written}\n{by_layers}", mixed.bits)
}

/// The columns that are aligned to the right.
const NUMBER_LAST: [bool; 8] = [false, true, true, true, true, true, true, true];
/// See [`NUMBER_LAST`].
const TEXT_LAST: [bool; 8] = [false, true, true, true, true, true, true, false];

fn add_graph(text: &mut String, graph: &GraphReport) {
    // Only codes of other programs have the parameter, and only own ones the error of results.
    let is_import = graph.matrices.iter().any(|matrix| matrix.parameter.is_some());
    let (right, last) = if is_import { (&TEXT_LAST, "format") } else { (&NUMBER_LAST, "error of results") };
    let mut table =
        Table::new(right, &["matrix", "rows", "columns", "bits", "group", "bits per weight", "error", last]);
    for matrix in &graph.matrices {
        let last = match matrix.output_error {
            Some(error) => format!("{error:.4}"),
            None if is_import => plain(&matrix.scheme),
            None => "-".to_owned(),
        };
        table.row([
            plain(matrix.parameter.as_deref().unwrap_or(&matrix.name)),
            matrix.rows.to_string(),
            matrix.columns.to_string(),
            matrix.bits.to_string(),
            matrix.group.to_string(),
            format!("{:.2}", matrix.bits_per_weight),
            format!("{:.4}", matrix.relative_error),
            last,
        ]);
    }
    let _ = writeln!(text, "{}\n{}", plain(&graph.file), table.text());
    for (kept, reason) in graph.kept.iter().filter_map(|kept| Some((kept, kept.reason.as_deref()?))) {
        let _ = writeln!(text, "kept as it is: {} ({}): {reason}", plain(&kept.name), size(kept.bytes));
    }
    if graph.matrices.iter().any(|matrix| matrix.rotation.is_some()) {
        text.push_str("rows are rotated: errors of weights are those of the rotated rows, which have equal lengths\n");
    }
    let _ = writeln!(
        text,
        "weights: {} before, {} now ({:.1} times less)",
        size(graph.bytes_before),
        size(graph.bytes),
        graph.bytes_before as f64 / graph.bytes.max(1) as f64
    );
    if let Some(error) = graph.errors.output_error {
        let _ = writeln!(text, "error of outputs on held-out samples: {error:.4}{}", of_outputs(&graph.errors));
    }
    if graph.weights == Some(WeightsOrigin::Seeded) {
        let _ = writeln!(text, "{SEEDED}");
    }
    if !graph.opens_in_onnxruntime {
        text.push_str("onnxruntime alone cannot open this graph: it has no products of 3 bits. Cotensor opens it with every engine.\n");
    }
    text.push('\n');
}
