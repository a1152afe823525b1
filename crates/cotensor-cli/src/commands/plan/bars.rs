//! The times of strategies as bars.

use cotensor_demo::escaped;
use cotensor_placement::Comparison;
use std::fmt::Write;

/// A bar that is so many times longer than the next one is cut, so that the others can be compared.
const CUT_RATIO: f64 = 3.0;

pub(super) const STYLE: &str = ".bar{align-items:center;display:grid;gap:8px;grid-template-columns:3.6rem minmax(0,1fr) 5.6rem;margin:4px 0}\
    .track{height:14px;position:relative}.track i{background:var(--line);display:block;height:100%}\
    .track i.cut{clip-path:polygon(0 0,100% 0,calc(100% - 7px) 33%,100% 66%,calc(100% - 7px) 100%,0 100%)}\
    .track b{background:var(--text);bottom:-4px;position:absolute;top:-4px;width:2px}.bar .value{text-align:right;white-space:nowrap}";

/// The time of each strategy as a bar, and the bound as a line. `shown` writes a time.
pub(super) fn bars(comparison: &Comparison, shown: fn(f64) -> String) -> String {
    let times: Vec<f64> = comparison.strategies.iter().map(|measured| measured.time_ns).collect();
    let end = longest_shown(&times).max(comparison.bound_ns);
    let mut chart = String::from("<p>The line across the bars is the bound that no plan can beat.");
    if times.iter().any(|time| *time > end) {
        chart.push_str(" A bar with a broken end is longer than shown.");
    }
    chart.push_str("</p>");
    for (measured, time) in comparison.strategies.iter().zip(&times) {
        let (class, width) = (escaped(&measured.name), 100.0 * (time / end).min(1.0));
        let cut = if *time > end { " cut" } else { "" };
        // Writing to a string cannot fail.
        let _ = write!(
            chart,
            "<div class=\"bar\"><span>{class}</span><span class=\"track\"><i class=\"{class}{cut}\" style=\"width:{width:.1}%\"></i>\
             <b style=\"left:{:.1}%\"></b></span><span class=\"value\">{}</span></div>",
            100.0 * comparison.bound_ns / end,
            shown(*time)
        );
    }
    chart
}

/// The longest time that is drawn whole.
fn longest_shown(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    // At least two bars stay whole.
    while let [_, .., before, longest] = sorted[..]
        && longest > CUT_RATIO * before
    {
        sorted.pop();
    }
    sorted.last().copied().unwrap_or(1.0).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_long_bar_does_not_crush_the_others() {
        assert_eq!(longest_shown(&[100.0, 5000.0, 150.0, 300.0]), 300.0);
        assert_eq!(longest_shown(&[100.0, 250.0, 300.0]), 300.0);
        assert_eq!(longest_shown(&[100.0, 5000.0]), 5000.0);
        assert_eq!(longest_shown(&[100.0, 110.0, 5000.0, 90_000.0]), 110.0);
        assert_eq!(longest_shown(&[]), 1.0);
    }
}
