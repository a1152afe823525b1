//! The comparison in words, and as a page with charts.

use crate::compare::{Comparison, Cost, Scenario};
use std::fmt::Write;

const MIB: f64 = (1 << 20) as f64;
const CHART_WIDTH: f64 = 640.0;
const CHART_HEIGHT: f64 = 200.0;

/// The comparison as text for a terminal.
pub fn text(comparison: &Comparison) -> String {
    let mut text = String::new();
    for scenario in &comparison.scenarios {
        // Writing to a string cannot fail.
        let _ = write_scenario(&mut text, scenario);
    }
    text
}

fn write_scenario(text: &mut String, scenario: &Scenario) -> std::fmt::Result {
    writeln!(text, "{}: {} on {}, {}", scenario.name, scenario.models.join(", "), scenario.engine, scenario.hardware)?;
    writeln!(text, "  weights: {}", weights_in_words(scenario))?;
    writeln!(text, "  {:22} {:>12} {:>10}", "", "peak memory", "time")?;
    for (name, cost) in ways(scenario) {
        writeln!(text, "  {name:22} {:>8.1} MiB {:>7.0} ms", cost.memory_bytes as f64 / MIB, cost.time_ms)?;
    }
    writeln!(
        text,
        "  saved                  {:>10.1} % {:>8.1} %   (from {})",
        scenario.memory_saved_percent,
        scenario.time_saved_percent,
        scenario.saved_by.join(" and ")
    )?;
    writeln!(
        text,
        "  of what could be saved {:>10.2}   {:>8.2}",
        scenario.memory_efficiency, scenario.time_efficiency
    )?;
    writeln!(text, "  largest difference from the unshared outputs: {}", scenario.max_abs_diff)?;
    for line in &scenario.arithmetic {
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
        writeln!(text, "  {} ({}): not run again: {shared}", user.user, user.task)?;
    }
    writeln!(text)
}

fn ways(scenario: &Scenario) -> [(&'static str, Cost); 3] {
    [("without sharing", scenario.without), ("mapped by the engine", scenario.mapped), ("with Cotensor", scenario.with)]
}

fn weights_in_words(scenario: &Scenario) -> &'static str {
    match scenario.weights {
        "seeded" => "seeded (the real architecture at real size; random numbers, so the answers mean nothing)",
        _ => "a real checkpoint",
    }
}

/// The comparison as one HTML page without anything from elsewhere.
pub fn html(comparison: &Comparison) -> String {
    let mut page = String::from(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Cotensor demo</title>\
         <style>body{font:15px/1.5 sans-serif;max-width:720px;margin:2em auto;color:#222}\
         table{border-collapse:collapse}td,th{padding:2px 12px;text-align:right}td:first-child,th:first-child{text-align:left}\
         .without{color:#b3412e;stroke:#b3412e}.mapped{color:#b8860b;stroke:#b8860b}.with{color:#1a7f4b;stroke:#1a7f4b}\
         svg{background:#fafafa;border:1px solid #ddd}text{font-size:11px;fill:#555;stroke:none}</style>\
         <h1>One copy of every tensor</h1><p>Several users of one input, measured three ways in fresh processes.</p>",
    );
    for scenario in &comparison.scenarios {
        // Writing to a string cannot fail.
        let _ = write_html(&mut page, scenario);
    }
    page.push_str("</html>\n");
    page
}

fn write_html(page: &mut String, scenario: &Scenario) -> std::fmt::Result {
    let users: Vec<String> = scenario.answers.iter().map(|user| escaped(&user.user)).collect();
    write!(
        page,
        "<h2>{}</h2><p>{} for {}. {}, {}. Weights: {}.</p>",
        escaped(&scenario.name),
        escaped(&scenario.models.join(", ")),
        users.join(", "),
        escaped(&scenario.engine),
        escaped(&scenario.hardware),
        weights_in_words(scenario)
    )?;
    write!(page, "<table><tr><th></th><th>peak memory</th><th>time</th></tr>")?;
    for ((name, cost), class) in ways(scenario).into_iter().zip(["without", "mapped", "with"]) {
        write!(
            page,
            "<tr class=\"{class}\"><td>{name}</td><td>{:.1} MiB</td><td>{:.0} ms</td></tr>",
            cost.memory_bytes as f64 / MIB,
            cost.time_ms
        )?;
    }
    write!(
        page,
        "<tr><td>saved</td><td>{:.1} %</td><td>{:.1} %</td></tr><tr><td>of what could be saved</td><td>{:.2}</td><td>{:.2}</td></tr></table>",
        scenario.memory_saved_percent,
        scenario.time_saved_percent,
        scenario.memory_efficiency,
        scenario.time_efficiency
    )?;
    write_chart(page, scenario)?;
    write!(page, "<ul>")?;
    for line in &scenario.arithmetic {
        write!(page, "<li>{}</li>", escaped(line))?;
    }
    write!(page, "<li>largest difference from the unshared outputs: {}</li></ul>", scenario.max_abs_diff)
}

/// Memory over time, one line for each way.
fn write_chart(page: &mut String, scenario: &Scenario) -> std::fmt::Result {
    let points = || scenario.timelines.iter().flat_map(|(_, samples)| samples);
    let seconds = points().map(|(at, _)| *at).fold(0.1, f64::max);
    let bytes = points().map(|(_, bytes)| *bytes as f64).fold(1.0, f64::max);
    write!(page, "<svg viewBox=\"0 0 {CHART_WIDTH} {}\" width=\"100%\">", CHART_HEIGHT + 20.0)?;
    for (name, samples) in &scenario.timelines {
        let line: Vec<String> = samples
            .iter()
            .map(|(at, held)| {
                let (x, y) = (at / seconds * CHART_WIDTH, CHART_HEIGHT * (1.0 - *held as f64 / bytes / 1.05));
                format!("{x:.1},{y:.1}")
            })
            .collect();
        write!(page, "<polyline class=\"{name}\" fill=\"none\" stroke-width=\"2\" points=\"{}\"/>", line.join(" "))?;
    }
    write!(
        page,
        "<text x=\"4\" y=\"14\">{:.0} MiB</text><text x=\"4\" y=\"{}\">0 s</text><text x=\"{}\" y=\"{}\" text-anchor=\"end\">{seconds:.1} s</text></svg>",
        bytes * 1.05 / MIB,
        CHART_HEIGHT + 15.0,
        CHART_WIDTH - 4.0,
        CHART_HEIGHT + 15.0
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
