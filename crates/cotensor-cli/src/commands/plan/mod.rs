//! `plan`: compares strategies of placement on a recorded trace.

mod bars;
mod page;

use crate::args::PlanArgs;
use crate::output::{ReportFile, print, print_json};
use crate::table::{Table, milliseconds, ratio};
use cotensor::core::{Error, Result, size};
use cotensor_placement::{Comparison, Device, Faults, Flow, Plan, Simulator, Trace, compare, micros, part};
use serde::Serialize;
use std::fmt::Write;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Largest trace file.
const TRACE_BYTES_MAX: u64 = 256 << 20;

/// Devices at most.
const DEVICES_MAX: usize = 64;

/// The answer with `--json`.
#[derive(Serialize)]
struct Answer<'a> {
    bound_us: f64,
    resident_us: f64,
    strategies: Vec<Row<'a>>,
    /// The device of each operation, for several devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    devices: Option<&'a [usize]>,
}

#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    time_us: f64,
    copied_bytes: u64,
    stall_us: f64,
    peak_bytes: u64,
}

pub(crate) fn plan(args: &PlanArgs) -> Result<()> {
    let devices = devices(args)?;
    let trace = read(&args.trace)?;
    let report = args.report.as_deref().map(ReportFile::open).transpose()?;
    let in_file = |error: Error| error.in_file(&args.trace);
    let comparison = compare(&trace, &devices).map_err(in_file)?;
    if args.json && report.is_none() {
        return print_json(&answer(&comparison));
    }
    let lines = summary(&trace, &devices, &comparison).map_err(in_file)?;
    if let Some(report) = report {
        report.write(&page::html(&comparison, &devices, &lines))?;
    }
    if args.json {
        return print_json(&answer(&comparison));
    }
    print(&format!(
        "{}\n{}",
        table(&comparison).text(),
        lines.iter().fold(String::new(), |text, line| text + line + "\n")
    ))
}

fn devices(args: &PlanArgs) -> Result<Vec<Device>> {
    let (count, speeds) = (args.budget.len(), &args.bandwidth);
    if count > DEVICES_MAX {
        return Err(Error::invalid(format!("{count} devices; at most {DEVICES_MAX}")).in_field("--budget"));
    }
    if speeds.len() != 1 && speeds.len() != count {
        let text = format!("{} values for {count} devices; expected one, or one for each", speeds.len());
        return Err(Error::invalid(text).in_field("--bandwidth"));
    }
    // At most a second.
    let latency_ns = args.latency.as_nanos() as u64;
    let device = |(&budget, &speed): (&u64, &u64)| Device::new(budget, speed, latency_ns);
    args.budget.iter().zip(speeds.iter().cycle()).map(device).collect()
}

fn read(path: &Path) -> Result<Trace> {
    let read = || {
        let mut text = String::new();
        File::open(path)?.take(TRACE_BYTES_MAX + 1).read_to_string(&mut text).map(|_| text)
    };
    let text = read().map_err(|error| Error::io("cannot read", &error).in_file(path))?;
    if text.len() as u64 > TRACE_BYTES_MAX {
        return Err(Error::invalid(format!("a trace has at most {}", size(TRACE_BYTES_MAX))).in_file(path));
    }
    Trace::from_json(&text).map_err(|error| error.in_file(path))
}

fn answer(comparison: &Comparison) -> Answer<'_> {
    let row = |measured| {
        let &cotensor_placement::Measured { ref name, time_ns, copied_bytes, stall_ns, peak_bytes, .. } = measured;
        let (time_us, stall_us) = (micros(time_ns), micros(stall_ns));
        Row { name, time_us, copied_bytes: copied_bytes.round() as u64, stall_us, peak_bytes }
    };
    Answer {
        bound_us: micros(comparison.bound_ns),
        resident_us: micros(comparison.resident_ns as f64),
        strategies: comparison.strategies.iter().map(row).collect(),
        devices: comparison.strategies.first().filter(|first| first.outcomes.len() > 1).map(|_| &*comparison.places),
    }
}

fn table(comparison: &Comparison) -> Table {
    let mut table = Table::new(
        &[false, true, true, true, true, true],
        &["strategy", "time", "of the bound", "copied", "stall", "peak memory"],
    );
    for measured in &comparison.strategies {
        table.row([
            measured.name.clone(),
            milliseconds(measured.time_ns),
            ratio(measured.time_ns, comparison.bound_ns),
            size(measured.copied_bytes.round() as u64),
            milliseconds(measured.stall_ns),
            size(measured.peak_bytes),
        ]);
    }
    table
}

/// What the table does not say, in sentences.
fn summary(trace: &Trace, devices: &[Device], comparison: &Comparison) -> Result<Vec<String>> {
    let used = trace.used();
    let sizes = trace.sizes();
    let total: u64 = used.iter().map(|&tensor| sizes[tensor]).sum();
    let largest = used.iter().map(|&tensor| sizes[tensor]).max().unwrap_or(0);
    let slowest = devices.iter().map(|device| device.copy_ns(largest)).max().unwrap_or(0);
    let mut lines = vec![format!(
        "times of one period: {} operations on {} tensors ({}), the largest {} (its copy takes {})",
        trace.operations().len(),
        used.len(),
        size(total),
        size(largest),
        milliseconds(slowest as f64)
    )];
    lines.push(format!(
        "no plan takes less than {}; with everything on its device a period takes {}",
        milliseconds(comparison.bound_ns),
        milliseconds(comparison.resident_ns as f64)
    ));
    for (number, device) in devices.iter().enumerate() {
        let part = part(trace, &comparison.places, number)?;
        // Flow plans, and chooses, when the first operation arrives.
        let mut flow = Flow::new(*device).with_forecast(part.operations().to_vec());
        Simulator::new(&part, device, Faults::default()).run(0..1, &mut flow)?;
        let operations = comparison.places.iter().filter(|&&place| place == number).count();
        let of = if devices.len() > 1 { format!("device {number}: {operations} operations, ") } else { String::new() };
        let without = |name: &str| format!("flow follows {name:?}, which takes less time than the plan");
        lines.extend(flow.plan().map(sentence).or_else(|| flow.alternative().map(without)).map(|line| of + &line));
    }
    Ok(lines)
}

fn sentence(plan: &Plan) -> String {
    let mut line = format!("plan {}: {} resident tensors", plan.hash().short(), plan.residents.len());
    // Writing to a string cannot fail.
    let _ = write!(line, ", {:.1} copies per period", plan.prefetches.len() as f64 / plan.periods as f64);
    if !plan.on_cpu.is_empty() {
        let _ = write!(line, ", {} operations on the CPU", plan.on_cpu.len());
    }
    if plan.periods > 1 {
        let _ = write!(line, "; it repeats after {} periods", plan.periods);
    }
    line
}
