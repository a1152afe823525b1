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
    Calibration, GraphReport, QuantizeOptions, QuantizeReport, quantize_folder, work_folder,
};
use cotensor::quant::Width;
use cotensor_demo::Progress;
use std::fmt::Write;
use std::path::Path;

pub(crate) fn quantize(args: &QuantizeArgs) -> Result<()> {
    let options = QuantizeOptions {
        width: Width::of(args.bits)?,
        group: args.group,
        scheme: args.scheme,
        activations: args.activations,
        keep: args.keep.clone(),
    };
    options.check()?;
    let hub = Hub::new(Settings::from_env());
    show_downloads(&hub);
    let folder = hub.folder(&args.model, Path::new("."), None)?;
    let calibration = args.calibrate.as_deref().map(|samples| calibrate(&folder, samples)).transpose()?;
    let work = work_folder(&args.out);
    signals::clean_up_first(move || drop(std::fs::remove_dir_all(work)))?;
    let steps = Steps::new();
    let report =
        quantize_folder(&folder, &args.out, &options, calibration.as_ref(), &mut |file, matrix, number, all| {
            steps.step(number as u64, all as u64, &format!("{file}: {}", matrix.name));
        });
    steps.finish();
    let report = report?;
    if args.json { print_json(&report) } else { print(&text(&report, &args.out)) }
}

/// Runs the model on samples.
fn calibrate(folder: &Path, samples: &Path) -> Result<Calibration> {
    let samples = Samples::open(samples).map_err(|error| error.in_field("--calibrate"))?;
    let steps = Steps::expecting(samples.len() as u64);
    let found = Calibration::of_samples(folder, &samples, &mut |done, all| {
        steps.next(&format!("sample {done} of {all}"));
    });
    steps.finish();
    found
}

fn text(report: &QuantizeReport, out: &Path) -> String {
    let mut text = String::new();
    for graph in &report.graphs {
        add_graph(&mut text, graph);
    }
    if !report.left_out.is_empty() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "not copied: {}", plain(&report.left_out.join(", ")));
    }
    let _ = writeln!(text, "written to {}", plain(&out.display().to_string()));
    text
}

fn add_graph(text: &mut String, graph: &GraphReport) {
    let mut table = Table::new(
        &[false, true, true, true, true, true, true, true],
        &["matrix", "rows", "columns", "bits", "group", "bits per weight", "error", "error of results"],
    );
    for matrix in &graph.matrices {
        table.row([
            plain(&matrix.name),
            matrix.rows.to_string(),
            matrix.columns.to_string(),
            matrix.bits.to_string(),
            matrix.group.to_string(),
            format!("{:.2}", matrix.bits_per_weight),
            format!("{:.4}", matrix.relative_error),
            matrix.output_error.map_or_else(|| "-".to_owned(), |error| format!("{error:.4}")),
        ]);
    }
    let _ = writeln!(text, "{}\n{}", plain(&graph.file), table.text());
    for kept in graph.kept.iter().filter(|kept| kept.reason.is_some()) {
        let reason = kept.reason.as_deref().unwrap_or_default();
        let _ = writeln!(text, "kept as it is: {} ({}): {reason}", plain(&kept.name), size(kept.bytes));
    }
    let _ = writeln!(
        text,
        "weights: {} before, {} now ({:.1} times less)",
        size(graph.bytes_before),
        size(graph.bytes),
        graph.bytes_before as f64 / graph.bytes.max(1) as f64
    );
    if !graph.opens_in_onnxruntime {
        text.push_str("onnxruntime alone cannot open this graph: it has no products of 3 bits. Cotensor opens it with every engine.\n");
    }
    text.push('\n');
}
