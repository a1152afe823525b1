//! The page of `plan --report`.

use super::bars::{self, bars};
use crate::table::ratio;
use cotensor::core::size;
use cotensor_demo::{Axis, ChartLine, escaped, line_chart, page_start};
use cotensor_placement::{Comparison, Device, Measured, Sample};
use std::fmt::Write;

/// Columns of a chart at most; each shows the most memory in its time.
const COLUMNS_MAX: usize = 400;

const COLOURS: &str = ".flow{--line:var(--green)}.genoa{--line:var(--red)}.lru{--line:var(--gold)}.pinned{--line:var(--violet)}\
    .cpu{--line:var(--blue)}";

/// The comparison as one self-contained HTML page.
pub(super) fn html(comparison: &Comparison, devices: &[Device], lines: &[String]) -> String {
    let device = |device: &Device| format!("{} of memory, {}/s", size(device.budget_bytes()), size(device.bandwidth()));
    let described: Vec<String> = devices.iter().map(device).collect();
    let mut page = page_start("Cotensor plan", &format!("{COLOURS}{}", bars::STYLE));
    page +=
        &format!("<h1>Strategies of placement</h1><p>{}. Means of one period, simulated.</p>", described.join("; "));
    page.push_str(
        "<div class=\"scroll\"><table><tr><th>strategy</th><th>time</th><th>of the bound</th><th>copied</th><th>stall</th><th>peak memory</th></tr>",
    );
    for measured in &comparison.strategies {
        // Writing to a string cannot fail.
        let _ = write!(
            page,
            "<tr class=\"{0}\"><td>{0}</td><td>{1}</td><td>{2}</td><td>{3}</td><td>{4}</td><td>{5}</td></tr>",
            escaped(&measured.name),
            time(measured.time_ns),
            ratio(measured.time_ns, comparison.bound_ns),
            size(measured.copied_bytes.round() as u64),
            time(measured.stall_ns),
            size(measured.peak_bytes)
        );
    }
    page.push_str("</table></div><h2>Time of a period</h2>");
    page.push_str(&bars(comparison, time));
    for (number, device) in devices.iter().enumerate() {
        let _ = match devices.len() {
            1 => write!(page, "<h2>Used memory in one period</h2>"),
            _ => write!(page, "<h2>Used memory of device {number} in one period</h2>"),
        };
        page.push_str("<div class=\"panels\">");
        for measured in &comparison.strategies {
            page.push_str(&memory(measured, number, device));
        }
        page.push_str("</div>");
    }
    page.push_str("<ul>");
    lines.iter().for_each(|line| page.extend(["<li>", &escaped(line), "</li>"]));
    page.push_str("</ul></html>\n");
    page
}

/// A time with about three digits, so that a table fits a telephone.
fn time(nanos: f64) -> String {
    let ms = nanos / 1e6;
    let digits = match ms {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        _ => 3,
    };
    let text = format!("{ms:.digits$}");
    let short = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{short} ms")
}

/// The memory that one strategy uses over one period.
fn memory(measured: &Measured, number: usize, device: &Device) -> String {
    let end = measured.time_ns.max(1.0);
    let line = ChartLine {
        class: measured.name.clone(),
        label: format!("used memory over time with {}", measured.name),
        points: steps(&measured.outcomes[number].timeline, end),
    };
    let bytes = Axis { max: device.budget_bytes() as f64, label: &|bytes| size(bytes as u64) };
    let chart = line_chart(&[line], &Axis { max: end, label: &time }, &bytes);
    format!("<section><h3>{}</h3>{chart}</section>", escaped(&measured.name))
}

/// The line of samples up to `end`: each value holds until the next. Of more changes than columns, the most memory of each column.
fn steps(samples: &[Sample], end: f64) -> Vec<(f64, f64)> {
    let inside = samples.iter().take_while(|sample| sample.at_ns as f64 <= end);
    let values: Vec<(f64, f64)> = inside.map(|sample| (sample.at_ns as f64, sample.bytes as f64)).collect();
    let Some(&(_, first)) = values.first() else { return Vec::new() };
    let reduced = if values.len() > COLUMNS_MAX { columns(&values, end) } else { values };
    let mut points = vec![(0.0, first)];
    for (at, bytes) in reduced {
        let before = points.last().map_or(bytes, |&(_, bytes)| bytes);
        points.extend([(at, before), (at, bytes)]);
    }
    let last = points.last().map_or(first, |&(_, bytes)| bytes);
    points.push((end, last));
    points
}

/// The largest value of each column.
fn columns(values: &[(f64, f64)], end: f64) -> Vec<(f64, f64)> {
    let width = end / COLUMNS_MAX as f64;
    let mut rest = values.iter().peekable();
    // The value that a column begins with.
    let mut current = 0.0;
    let column = |number: usize| {
        let start = width * number as f64;
        let mut most: f64 = current;
        while let Some((_, bytes)) = rest.next_if(|(at, _)| *at < start + width) {
            current = *bytes;
            most = most.max(current);
        }
        (start, most)
    };
    (0..COLUMNS_MAX).map(column).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_one_period_is_a_line_of_steps() {
        let sample = |at_ns, bytes| Sample { at_ns, bytes };
        let found = steps(&[sample(2, 10), sample(4, 30), sample(12, 50)], 10.0);
        assert_eq!(found, [(0.0, 10.0), (2.0, 10.0), (2.0, 10.0), (4.0, 10.0), (4.0, 30.0), (10.0, 30.0)]);
        assert!(steps(&[], 10.0).is_empty());
    }

    #[test]
    fn times_are_short() {
        let times = [0.0, 12_345.0, 1.5e6, 25e6, 329.067e6, 2400e6].map(time);
        assert_eq!(times, ["0 ms", "0.012 ms", "1.5 ms", "25 ms", "329 ms", "2400 ms"]);
    }

    #[test]
    fn many_changes_keep_their_peaks() {
        let samples: Vec<Sample> =
            (0..10_000).map(|at| Sample { at_ns: at, bytes: if at == 5000 { 99 } else { at % 2 } }).collect();
        let found = steps(&samples, 10_000.0);
        assert!(found.len() <= 2 * COLUMNS_MAX + 2, "{}", found.len());
        assert!(found.iter().any(|&(_, bytes)| bytes == 99.0));
    }
}
