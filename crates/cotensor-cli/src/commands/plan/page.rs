//! The page of `plan --report`.

use crate::table::{milliseconds, ratio};
use cotensor::core::size;
use cotensor_demo::{Axis, ChartLine, escaped, line_chart};
use cotensor_placement::{Comparison, Device, Measured};
use std::fmt::Write;

const BARS_WIDTH: f64 = 640.0;
const BAR_HEIGHT: f64 = 22.0;
/// Periods of the slowest strategy that the chart of memory shows.
const PERIODS_SHOWN: f64 = 1.0;

const STYLE: &str = "body{font:15px/1.5 sans-serif;max-width:720px;margin:2em auto;color:#222}\
    table{border-collapse:collapse}td,th{padding:2px 12px;text-align:right}td:first-child,th:first-child{text-align:left}\
    .flow{color:#1a7f4b;stroke:#1a7f4b;fill:#1a7f4b}.genoa{color:#b3412e;stroke:#b3412e;fill:#b3412e}\
    .lru{color:#856207;stroke:#856207;fill:#856207}.pinned{color:#7a4fa3;stroke:#7a4fa3;fill:#7a4fa3}\
    .cpu{color:#3f66a3;stroke:#3f66a3;fill:#3f66a3}polyline{fill:none}.legend span{margin-right:1em}\
    svg{background:#fafafa;border:1px solid #ddd}text{font-size:11px;fill:#555;stroke:none}";

/// The comparison as one self-contained HTML page.
pub(super) fn html(comparison: &Comparison, devices: &[Device], lines: &[String]) -> String {
    let device = |device: &Device| format!("{} of memory, {}/s", size(device.budget_bytes()), size(device.bandwidth()));
    let described: Vec<String> = devices.iter().map(device).collect();
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Cotensor plan</title><style>{STYLE}</style>\
         <h1>Strategies of placement</h1><p>{}. Means of one period, simulated.</p>",
        described.join("; ")
    );
    page.push_str(
        "<table><tr><th>strategy</th><th>time</th><th>of the bound</th><th>copied</th><th>stall</th><th>peak memory</th></tr>",
    );
    for measured in &comparison.strategies {
        // Writing to a string cannot fail.
        let _ = write!(
            page,
            "<tr class=\"{0}\"><td>{0}</td><td>{1}</td><td>{2}</td><td>{3}</td><td>{4}</td><td>{5}</td></tr>",
            escaped(&measured.name),
            milliseconds(measured.time_ns),
            ratio(measured.time_ns, comparison.bound_ns),
            size(measured.copied_bytes.round() as u64),
            milliseconds(measured.stall_ns),
            size(measured.peak_bytes)
        );
    }
    page.push_str("</table><h2>Time of a period</h2><p>The dark line is the bound that no plan can beat.</p>");
    page.push_str(&bars(comparison));
    for (number, device) in devices.iter().enumerate() {
        let _ = match devices.len() {
            1 => write!(page, "<h2>Used memory</h2>"),
            _ => write!(page, "<h2>Used memory of device {number}</h2>"),
        };
        page.push_str(&memory(&comparison.strategies, number, device));
    }
    page.push_str("<ul>");
    lines.iter().for_each(|line| page.extend(["<li>", &escaped(line), "</li>"]));
    page.push_str("</ul></html>\n");
    page
}

/// The time of each strategy as a bar, and the bound as a line.
fn bars(comparison: &Comparison) -> String {
    let longest = comparison.strategies.iter().map(|measured| measured.time_ns).fold(1.0, f64::max);
    let scale = (BARS_WIDTH - 60.0) / longest;
    let height = BAR_HEIGHT * comparison.strategies.len() as f64;
    let mut chart = format!("<svg viewBox=\"0 0 {BARS_WIDTH} {height}\" width=\"100%\">");
    for (row, measured) in comparison.strategies.iter().enumerate() {
        let y = BAR_HEIGHT * row as f64;
        let _ = write!(
            chart,
            "<rect class=\"{0}\" x=\"50\" y=\"{1}\" width=\"{2:.1}\" height=\"{3}\"/><text x=\"4\" y=\"{4}\">{0}</text>",
            escaped(&measured.name),
            y + 4.0,
            measured.time_ns * scale,
            BAR_HEIGHT - 8.0,
            y + 15.0
        );
    }
    let x = 50.0 + comparison.bound_ns * scale;
    let _ = write!(chart, "<line x1=\"{x:.1}\" y1=\"0\" x2=\"{x:.1}\" y2=\"{height}\" stroke=\"#222\"/></svg>");
    chart
}

/// Used memory over time, one line per strategy.
fn memory(strategies: &[Measured], number: usize, device: &Device) -> String {
    let shown = PERIODS_SHOWN * strategies.iter().map(|measured| measured.time_ns).fold(1.0, f64::max);
    let line = |measured: &Measured| {
        let samples = measured.outcomes[number].timeline.iter().take_while(|sample| sample.at_ns as f64 <= shown);
        ChartLine {
            class: measured.name.clone(),
            label: measured.name.clone(),
            points: samples.map(|sample| (sample.at_ns as f64, sample.bytes as f64)).collect(),
        }
    };
    let lines: Vec<ChartLine> = strategies.iter().map(line).collect();
    let bytes = Axis { max: device.budget_bytes() as f64, label: &|bytes| size(bytes as u64) };
    line_chart(&lines, &Axis { max: shown, label: &milliseconds }, &bytes)
}
