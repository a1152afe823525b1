//! Parts of HTML reports.

use std::fmt::Write;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 200.0;

/// A chart of lines as SVG. Each line has a CSS class and points from (0, 0), bottom left, to (1, 1), top right. `top`
/// labels the upper end of the vertical axis, `left` and `right` the ends of the horizontal one.
pub fn line_chart(lines: &[(String, Vec<(f64, f64)>)], top: &str, left: &str, right: &str) -> String {
    let mut chart = format!("<svg viewBox=\"0 0 {WIDTH} {}\" width=\"100%\">", HEIGHT + 20.0);
    for (class, points) in lines {
        let points: Vec<String> =
            points.iter().map(|(x, y)| format!("{:.1},{:.1}", x * WIDTH, HEIGHT * (1.0 - y))).collect();
        // Writing to a string cannot fail.
        let _ = write!(
            chart,
            "<polyline class=\"{}\" fill=\"none\" stroke-width=\"2\" points=\"{}\"/>",
            escaped(class),
            points.join(" ")
        );
    }
    let (below, end) = (HEIGHT + 15.0, WIDTH - 4.0);
    let [top, left, right] = [top, left, right].map(escaped);
    let _ = write!(
        chart,
        "<text x=\"4\" y=\"14\">{top}</text><text x=\"4\" y=\"{below}\">{left}</text>\
         <text x=\"{end}\" y=\"{below}\" text-anchor=\"end\">{right}</text></svg>"
    );
    chart
}

/// Text as HTML.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
