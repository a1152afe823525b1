//! Charts of HTML reports.

use std::fmt::Write;

/// The plotted area. It is stretched to the width of the page; labels are text beside it, whose size stays.
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 100.0;
/// An axis has at most this many intervals between ticks.
const INTERVALS_MAX: f64 = 6.0;

/// A line of a chart.
pub struct ChartLine {
    /// CSS class, which gives the colour.
    pub class: String,
    /// The name in the legend.
    pub label: String,
    /// Points, in the units of the axes.
    pub points: Vec<(f64, f64)>,
}

/// An axis from zero.
pub struct Axis<'a> {
    /// The largest value that a line has.
    pub max: f64,
    /// The label of a tick.
    pub label: &'a dyn Fn(f64) -> String,
}

impl Axis<'_> {
    /// The distance between ticks: 1, 2 or 5 times a power of ten.
    fn step(&self) -> f64 {
        let least = self.max.max(f64::MIN_POSITIVE) / INTERVALS_MAX;
        let power = 10f64.powf(least.log10().floor());
        [1.0, 2.0, 5.0, 10.0].map(|times| times * power).into_iter().find(|step| *step >= least).unwrap_or(least)
    }

    /// Values from zero to the first one that is not below the largest value.
    fn ticks(&self) -> Vec<f64> {
        let step = self.step();
        let intervals = (self.max / step).ceil().clamp(1.0, INTERVALS_MAX + 1.0);
        (0..=intervals as u32).map(|tick| f64::from(tick) * step).collect()
    }
}

/// The names and colours of lines.
pub fn legend(lines: &[ChartLine]) -> String {
    let mut legend = String::from("<p class=\"legend\">");
    for ChartLine { class, label, .. } in lines {
        // Writing to a string cannot fail.
        let _ = write!(legend, "<span><b class=\"{}\">&#9473;</b> {}</span> ", escaped(class), escaped(label));
    }
    legend.push_str("</p>");
    legend
}

/// A chart of lines. The axes have ticks with labels.
pub fn line_chart(lines: &[ChartLine], x: &Axis<'_>, y: &Axis<'_>) -> String {
    let (xs, ys) = (x.ticks(), y.ticks());
    let end = |ticks: &[f64]| ticks.last().copied().unwrap_or(1.0);
    let right_of = |value: f64| WIDTH * value / end(&xs);
    let above = |value: f64| HEIGHT - HEIGHT * value / end(&ys);
    let mut chart = String::from("<div class=\"chart\"><div class=\"y\">");
    for &tick in &ys {
        let (percent, label) = (100.0 * tick / end(&ys), escaped(&(y.label)(tick)));
        let _ = write!(chart, "<span style=\"bottom:{percent:.1}%\">{label}</span>");
    }
    let names: Vec<String> = lines.iter().map(|line| escaped(&line.label)).collect();
    let _ = write!(
        chart,
        "</div><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{}\">",
        names.join(", ")
    );
    for &tick in &ys {
        let at = above(tick);
        let _ = write!(
            chart,
            "<line vector-effect=\"non-scaling-stroke\" x1=\"0\" x2=\"{WIDTH}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>"
        );
    }
    for ChartLine { class, points, .. } in lines {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{:.1},{:.1}", right_of(*x), above(*y))).collect();
        let _ = write!(
            chart,
            "<polyline vector-effect=\"non-scaling-stroke\" class=\"{}\" points=\"{}\"/>",
            escaped(class),
            points.join(" ")
        );
    }
    chart.push_str("</svg><div class=\"x\">");
    for &tick in &xs {
        let (percent, label) = (100.0 * tick / end(&xs), escaped(&(x.label)(tick)));
        let _ = write!(chart, "<span style=\"left:{percent:.1}%\">{label}</span>");
    }
    chart.push_str("</div></div>");
    chart
}

/// Text as HTML.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_contain_every_value() {
        for (max, expected) in [
            (1.0, &[0.0, 0.2, 0.4, 0.6, 0.8, 1.0][..]),
            (7.3, &[0.0, 2.0, 4.0, 6.0, 8.0]),
            (640.0, &[0.0, 200.0, 400.0, 600.0, 800.0]),
            (1234.5, &[0.0, 500.0, 1000.0, 1500.0]),
        ] {
            let ticks = Axis { max, label: &|value| value.to_string() }.ticks();
            assert_eq!(ticks.len(), expected.len(), "{max}: {ticks:?}");
            assert!(ticks.iter().zip(expected).all(|(tick, expected)| (tick - expected).abs() < 1e-9), "{ticks:?}");
        }
        assert!(Axis { max: 0.0, label: &|value| value.to_string() }.ticks().len() >= 2);
    }

    #[test]
    fn chart_has_legend_ticks_and_points_within_its_area() {
        let line = ChartLine { class: "with".into(), label: "a < b".into(), points: vec![(0.0, 0.0), (10.0, 100.0)] };
        let seconds = Axis { max: 10.0, label: &|value| format!("{value:.0} s") };
        let lines = [line];
        let chart = line_chart(&lines, &seconds, &Axis { max: 100.0, label: &|value| format!("{value:.0} MiB") });
        for part in [
            "bottom:100.0%\">100 MiB</span>",
            "bottom:20.0%\">20 MiB</span>",
            "left:100.0%\">10 s</span>",
            "points=\"0.0,100.0 1000.0,0.0\"",
            "aria-label=\"a &lt; b\"",
        ] {
            assert!(chart.contains(part), "{part} is not in {chart}");
        }
        assert!(legend(&lines).contains("<b class=\"with\">&#9473;</b> a &lt; b</span>"));
        assert!(!chart.contains("<text"), "text of a stretched picture is not readable on a telephone");
    }
}
