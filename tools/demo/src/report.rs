//! Formats the comparison as text and as an HTML page with charts.

use crate::about::About;
use crate::chart::{Axis, ChartLine, escaped, legend, line_chart};
use crate::comparison::{Comparison, Cost, Entry, Scenario};
use crate::processes::{FleetCost, Processes};
use crate::style::page_start;
use std::fmt::Write;

const MIB: f64 = (1 << 20) as f64;

/// The comparison as text for a terminal.
pub fn text(comparison: &Comparison) -> String {
    let mut text = String::new();
    for entry in &comparison.scenarios {
        // Writing to a string cannot fail.
        let _ = match entry {
            Entry::Users(scenario) => write_scenario(&mut text, scenario),
            Entry::Processes(processes) => write_processes(&mut text, processes),
        };
    }
    text
}

fn write_processes(text: &mut String, processes: &Processes) -> std::fmt::Result {
    let Processes { name, engine, hardware, .. } = processes;
    let models = processes.checkpoints.join(", ");
    writeln!(text, "{name}: {} of {models} on {engine}, {hardware}", processes.processes)?;
    writeln!(text, "  weights: {}", weights_in_words(processes.weights))?;
    writeln!(text, "  {:36} {:>12} {:>13} {:>10}", "", "memory", "first answers", "answer")?;
    for (what, cost) in process_rows(processes) {
        let [memory, first, answer] = cells(cost);
        writeln!(text, "  {what:36} {memory:>12} {first:>13} {answer:>10}")?;
    }
    let (memory, time) = (processes.memory_saved_percent, processes.time_saved_percent);
    writeln!(text, "  {:36} {:>12} {:>13}", "saved (over copies)", format!("{memory:.1} %"), format!("{time:.1} %"))?;
    writeln!(text, "  largest difference from the answers of copies: {}", processes.max_abs_diff)?;
    for line in &processes.arithmetic {
        writeln!(text, "  {line}")?;
    }
    writeln!(text)
}

fn process_rows(processes: &Processes) -> [(&'static str, FleetCost); 4] {
    [
        ("a copy in each, the engine's default", processes.copies),
        ("mapped by the engine", processes.mapped),
        ("with Cotensor's daemon", processes.with),
        ("the same, started again", processes.with_again),
    ]
}

/// Memory, time of the first answers, and time of an answer.
fn cells(cost: FleetCost) -> [String; 3] {
    let ms = |ms: f64| format!("{ms:.0} ms");
    [format!("{:.1} MiB", cost.memory_bytes as f64 / MIB), ms(cost.time_ms), ms(cost.answer_ms)]
}

fn write_scenario(text: &mut String, scenario: &Scenario) -> std::fmt::Result {
    writeln!(
        text,
        "{}: {} on {}, {}",
        scenario.name,
        scenario.checkpoints.join(", "),
        scenario.engine,
        scenario.hardware
    )?;
    writeln!(text, "  weights: {}", weights_in_words(scenario.weights))?;
    writeln!(text, "  {:36} {:>12} {:>10}", "", "peak memory", "time")?;
    for row in rows(scenario) {
        let origin = if row.origin.is_empty() { String::new() } else { format!("   {}", row.origin) };
        writeln!(text, "  {:36} {:>12} {:>10}{origin}", row.name, row.memory, row.time)?;
    }
    writeln!(text, "  largest difference from the unshared outputs: {}", scenario.max_abs_diff)?;
    for line in of_scenario(scenario).iter().chain(&scenario.arithmetic) {
        writeln!(text, "  {line}")?;
    }
    for user in &scenario.answers {
        let shared: Vec<&str> = user
            .stages
            .iter()
            .filter(|stage| !stage.computed && stage.run_ms > 0.0)
            .map(|stage| stage.role.as_str())
            .collect();
        let shared = if shared.is_empty() { "nothing".to_owned() } else { shared.join(", ") };
        writeln!(text, "  {} ({}): reused: {shared}", user.user, user.task)?;
    }
    writeln!(text)
}

/// The claim of the scenario, and the adapters, in sentences.
fn of_scenario(scenario: &Scenario) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(claim) = scenario.claim {
        let percent = |claimed: Option<f64>| claimed.map_or("nothing".to_owned(), |percent| format!("{percent:.0} %"));
        let reached = if scenario.why_short.is_none() { "reached" } else { "not reached" };
        lines.push(format!(
            "claimed by the first library with this API: {} of the memory and {} of the time: {reached}",
            percent(claim.memory_percent),
            percent(claim.time_percent)
        ));
    }
    lines.extend(scenario.why_short.clone());
    for stage in &scenario.shared_stages {
        lines.push(format!(
            "{} of {}: {:.1} % of its {:.1} MiB of weights and {:.1} % of its run of {:.0} ms are saved; another model has run its first part",
            stage.role,
            stage.user,
            stage.weights_saved_percent,
            stage.weight_bytes as f64 / MIB,
            stage.run_saved_percent,
            stage.run_ms
        ));
    }
    for fit in &scenario.adapters {
        let quality = &fit.quality;
        lines.push(format!(
            "the adapter of {} was fitted on {} samples in {:.1} s: held-out R² {:.3}, cosine {:.3} (mean prediction {:.3}, {:.3}){}",
            fit.user,
            fit.samples,
            fit.fit_ms / 1e3,
            quality.r2,
            quality.cosine,
            quality.baseline_r2,
            quality.baseline_cosine,
            if scenario.weights == "seeded" { "; with seeded weights, the error means nothing" } else { "" }
        ));
    }
    lines
}

/// One row of the table, for text and page.
struct Row {
    /// CSS class.
    class: &'static str,
    name: &'static str,
    memory: String,
    time: String,
    /// Origin of the figures.
    origin: String,
}

fn rows(scenario: &Scenario) -> Vec<Row> {
    let mib = |bytes: f64| format!("{:.1} MiB", bytes / MIB);
    // Adding zero converts -0 to 0.
    let ms = |ms: f64| format!("{:.0} ms", ms.round() + 0.0);
    let row = |class, name, memory, time, origin| Row { class, name, memory, time, origin };
    let cost = |class, name, cost: Cost, origin: &str| {
        row(class, name, mib(cost.memory_bytes as f64), ms(cost.time_ms), origin.to_owned())
    };
    let (memory, time) = (scenario.memory_saved, scenario.time_saved);
    let mut rows = vec![
        cost("without", "without sharing", scenario.without, ""),
        cost("mapped", "mapped by the engine", scenario.mapped, ""),
        cost("by_hand", "one model by hand", scenario.by_hand, "one program, one copy, results reused"),
        cost("with", "with Cotensor (weight cache warm)", scenario.with, ""),
        row(
            "",
            match scenario.baseline {
                "mapped" => "saved (warm, over mapped)",
                _ => "saved (warm)",
            },
            format!("{:.1} %", scenario.memory_saved_percent),
            format!("{:.1} %", scenario.time_saved_percent),
            format!(
                "from {}",
                if scenario.saved_by.is_empty() { "nothing".to_owned() } else { scenario.saved_by.join(" and ") }
            ),
        ),
        row(
            "",
            "  from weights",
            mib(memory.weights_bytes as f64),
            ms(time.load_ms),
            "copies and loads avoided".to_owned(),
        ),
        row(
            "",
            "  from computation",
            mib(memory.computation_bytes as f64),
            ms(time.computation_ms()),
            format!("work buffers; stages {:.0} ms, inputs {:.0} ms", time.run_ms, time.prepare_ms),
        ),
        row(
            "",
            "  from the rest",
            String::new(),
            ms(time.other_ms),
            "start of the program, composing answers".to_owned(),
        ),
        row(
            "",
            "efficiency",
            format!("{:.2}", scenario.memory_efficiency),
            format!("{:.2}", scenario.time_efficiency),
            "savings divided by duplicated weight bytes and by avoidable time".to_owned(),
        ),
    ];
    if let Some(cold) = scenario.with_cold {
        let origin = "fills the weight cache; timed once";
        rows.insert(4, cost("with_cold", "with Cotensor, first run (cold)", cold, origin));
    }
    if let Some(peer) = &scenario.onnxruntime {
        let cost_of = Cost { memory_bytes: peer.memory_bytes, time_ms: peer.time_ms };
        let origin = format!("onnxruntime {}; with prepared inputs, including Python", peer.version);
        rows.insert(3, cost("onnxruntime", "one model by hand, onnxruntime", cost_of, &origin));
    }
    rows
}

fn weights_in_words(weights: &str) -> &'static str {
    match weights {
        "seeded" => "seeded (the real architecture at real size with random weights; the answers are meaningless)",
        _ => "a real checkpoint",
    }
}

/// The colours of the variants.
const COLOURS: &str = ".without{--line:var(--red)}.mapped{--line:var(--gold)}.by_hand{--line:var(--violet)}.with{--line:var(--green)}\
    .with_cold{--line:var(--blue)}.onnxruntime{--line:var(--teal)}";

/// The comparison as one self-contained HTML page.
pub fn html(comparison: &Comparison, about: &About) -> String {
    let mut page = page_start("Cotensor demo", COLOURS);
    page += &format!(
        "<h1>One copy of every tensor</h1><p>Several users of one input; each variant runs in new processes.</p>\
         <p>{}, {}: <code>{}</code></p>",
        about.date(),
        escaped(&about.program),
        escaped(&about.command)
    );
    for entry in &comparison.scenarios {
        // Writing to a string cannot fail.
        let _ = match entry {
            Entry::Users(scenario) => write_html(&mut page, scenario),
            Entry::Processes(processes) => write_processes_html(&mut page, processes),
        };
    }
    page.push_str("</html>\n");
    page
}

fn write_processes_html(page: &mut String, processes: &Processes) -> std::fmt::Result {
    write!(
        page,
        "<h2>{}</h2><p>{} processes of {}. {}, {}. Weights: {}.</p>",
        escaped(&processes.name),
        processes.processes,
        escaped(&processes.checkpoints.join(", ")),
        escaped(&processes.engine),
        escaped(&processes.hardware),
        weights_in_words(processes.weights)
    )?;
    write!(
        page,
        "<div class=\"scroll\"><table><tr><th></th><th>memory</th><th>first answers</th><th>answer</th></tr>"
    )?;
    for (what, cost) in process_rows(processes) {
        write!(page, "<tr><td>{what}</td><td>{}</td></tr>", cells(cost).join("</td><td>"))?;
    }
    let (memory, time) = (processes.memory_saved_percent, processes.time_saved_percent);
    write!(
        page,
        "<tr><td>saved (over copies)</td><td>{memory:.1} %</td><td>{time:.1} %</td><td></td></tr></table></div><ul>"
    )?;
    for line in &processes.arithmetic {
        write!(page, "<li>{}</li>", escaped(line))?;
    }
    write!(page, "</ul>")
}

fn write_html(page: &mut String, scenario: &Scenario) -> std::fmt::Result {
    let users: Vec<String> = scenario.answers.iter().map(|user| escaped(&user.user)).collect();
    write!(
        page,
        "<h2>{}</h2><p>{} for {}. {}, {}. Weights: {}.</p>",
        escaped(&scenario.name),
        escaped(&scenario.checkpoints.join(", ")),
        users.join(", "),
        escaped(&scenario.engine),
        escaped(&scenario.hardware),
        weights_in_words(scenario.weights)
    )?;
    write!(
        page,
        "<div class=\"scroll\"><table class=\"words\"><tr><th></th><th>peak memory</th><th>time</th><th>origin</th></tr>"
    )?;
    for row in rows(scenario) {
        let class = if row.class.is_empty() { String::new() } else { format!(" class=\"{}\"", row.class) };
        write!(
            page,
            "<tr{class}><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            row.name.trim_start(),
            row.memory,
            row.time,
            escaped(&row.origin)
        )?;
    }
    write!(page, "</table></div>")?;
    write_chart(page, scenario)?;
    write!(
        page,
        "<p>The chart shows one run of each variant with sampled memory. Sampling slows a run, so the times in the table are \
         medians of other runs.</p>"
    )?;
    write!(page, "<ul>")?;
    for line in of_scenario(scenario).iter().chain(&scenario.arithmetic) {
        write!(page, "<li>{}</li>", escaped(line))?;
    }
    write!(page, "<li>largest difference from the unshared outputs: {}</li></ul>", scenario.max_abs_diff)
}

/// Memory over time, one line per variant.
fn write_chart(page: &mut String, scenario: &Scenario) -> std::fmt::Result {
    let line = |(name, samples): &(&'static str, Vec<(f64, u64)>)| ChartLine {
        class: (*name).to_owned(),
        label: rows(scenario).iter().find(|row| row.class == *name).map_or(*name, |row| row.name).to_owned(),
        points: samples.iter().map(|(at, bytes)| (*at, *bytes as f64 / MIB)).collect(),
    };
    let lines: Vec<ChartLine> = scenario.timelines.iter().map(line).collect();
    let points = || lines.iter().flat_map(|line| &line.points);
    let seconds = points().map(|(at, _)| *at).fold(0.1, f64::max);
    let mib = points().map(|(_, mib)| *mib).fold(1.0, f64::max);
    let x = Axis { max: seconds, label: &|seconds| format!("{} s", short(seconds)) };
    page.write_str(&legend(&lines))?;
    page.write_str(&line_chart(&lines, &x, &Axis { max: mib, label: &|mib| format!("{mib:.0} MiB") }))
}

/// A round number without the digits that a sum of fractions adds.
fn short(number: f64) -> String {
    let text = format!("{number:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
