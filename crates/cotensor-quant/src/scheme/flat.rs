//! One scale for each group: `round`, `search` and `affine`.

use crate::encode::{Line, code_of, encode_row, inverse};
use crate::halves::{narrow, widen};
use crate::lanes::{extremes, sums};
use crate::scales::Scales;
use crate::spec::Width;
use crate::tensor::QuantTensor;
use rten_simd::f16;

/// The scales that `search` tries, as shares of the one of `round`: from the first by the step.
struct Grid {
    first: f32,
    step: f32,
    count: u32,
    /// Whether it also tries them with the other sign, which exchanges the ends of the range: one has a code more.
    signs: bool,
}

impl Grid {
    fn of(width: Width) -> Self {
        match width {
            Width::Two => Self { first: 0.35, step: 0.075, count: 11, signs: true },
            Width::Three => Self { first: 0.55, step: 0.06, count: 9, signs: true },
            Width::Four => Self { first: 0.73, step: 0.045, count: 8, signs: false },
            Width::Eight => Self { first: 0.995, step: 0.005, count: 2, signs: false },
        }
    }
}

/// Fits the groups of a row. `lines` is the memory for those of a row. `fit` finds the best one for a group.
#[inline(always)]
pub(super) fn quantize(
    width: Width,
    row: usize,
    weights: &[f32],
    tensor: &mut QuantTensor,
    lines: &mut RowLines,
    fit: impl Fn(Width, &[f32]) -> Line,
) {
    let group = tensor.spec().group();
    for (number, values) in weights.chunks_exact(group).enumerate() {
        let line = fit(width, values);
        (lines.scales[number], lines.offsets[number]) = (line.scale, line.offset);
    }
    lines.write(row, weights, tensor);
}

/// Scales and offsets of the groups of a row.
pub(super) struct RowLines {
    scales: Vec<f32>,
    offsets: Vec<f32>,
    stored: Vec<Line>,
}

impl RowLines {
    pub(super) fn new(groups: usize) -> Self {
        let zeros = || vec![0.0; groups];
        Self { scales: zeros(), offsets: zeros(), stored: Vec::with_capacity(groups) }
    }

    /// Writes the numbers as float16, and the codes that are nearest with the numbers as float16 keeps them.
    fn write(&mut self, row: usize, weights: &[f32], tensor: &mut QuantTensor) {
        let (width, group, groups) = (tensor.spec().width(), tensor.spec().group(), self.scales.len());
        let (codes, scales) = tensor.parts_mut();
        let Scales::Flat { scales, offsets } = scales else { return };
        let at = row * groups..(row + 1) * groups;
        round(&mut self.scales, &mut scales[at.clone()]);
        if let Some(offsets) = offsets {
            round(&mut self.offsets, &mut offsets[at]);
        }
        self.stored.clear();
        let lines = self.scales.iter().zip(&self.offsets);
        self.stored.extend(lines.map(|(scale, offset)| Line::new(width, *scale, *offset)));
        let bytes = width.bytes(weights.len());
        encode_row(width, group, weights, &self.stored, &mut codes[row * bytes..(row + 1) * bytes]);
    }
}

/// Writes numbers as float16, and keeps the values of that.
fn round(values: &mut [f32], halves: &mut [f16]) {
    narrow(values, halves);
    widen(halves, values);
}

/// The largest magnitude is the lowest code.
#[inline(always)]
pub(super) fn rounded(width: Width, values: &[f32]) -> Line {
    let (low, high) = extremes(values);
    let peak = if high > -low { high } else { low };
    let zero = f32::from(width.middle());
    Line { scale: -peak / zero, offset: 0.0, zero }
}

/// The scale of the least squared error with the middle code as zero.
#[inline(always)]
pub(super) fn search(width: Width, values: &[f32]) -> Line {
    let start = rounded(width, values);
    let (zero, max, grid) = (start.zero, f32::from(width.code_max()), Grid::of(width));
    let fit = |scale: f32| {
        let inverse = inverse(scale);
        let [product, square] = sums(
            values.len(),
            #[inline(always)]
            |at| {
                let level = code_of(values[at], inverse, zero, max) - zero;
                [values[at] * level, level * level]
            },
        );
        // The best scale for these codes, and by how much it lessens the squared error.
        if square == 0.0 { (scale, 0.0) } else { (product / square, product / square * product) }
    };
    let mut best = (start.scale, f32::NEG_INFINITY);
    let signs: &[f32] = if grid.signs { &[1.0, -1.0] } else { &[1.0] };
    for sign in signs {
        for number in 0..grid.count {
            let found = fit(start.scale * sign * (grid.first + grid.step * number as f32));
            if found.1 > best.1 {
                best = found;
            }
        }
    }
    // The codes of the better scale may have a better one.
    let again = fit(best.0);
    let scale = if again.1 > best.1 { again.0 } else { best.0 };
    Line { scale, offset: 0.0, zero }
}

/// Scale and offset of the least squared error.
#[inline(always)]
pub(super) fn affine(width: Width, values: &[f32]) -> Line {
    let (low, high) = extremes(values);
    if low == high {
        return Line::new(width, 0.0, low);
    }
    let symmetric = search(width, values);
    let mut best = (error(width, values, symmetric), symmetric);
    let shares: &[f32] = match width {
        Width::Two => &[1.0, 0.9, 0.8, 0.7, 0.6],
        Width::Three => &[1.0, 0.93, 0.86, 0.79, 0.72],
        _ => &[1.0, 0.95, 0.9, 0.85],
    };
    for share in shares {
        let scale = (high - low) * share / f32::from(width.code_max());
        let center = (high + low) / 2.0;
        let mut line = Line::of_zero(width, scale, f32::from(width.code_max()) / 2.0 - center / scale);
        for _ in 0..3 {
            line = regression(width, values, line);
        }
        let stored = line.stored(width);
        let found = error(width, values, stored);
        if found < best.0 {
            best = (found, stored);
        }
    }
    best.1
}

/// The line of the least squared error for the codes of another line.
#[inline(always)]
fn regression(width: Width, values: &[f32], line: Line) -> Line {
    let (inverse, max, count) = (inverse(line.scale), f32::from(width.code_max()), values.len() as f32);
    let [x, c, xc, cc] = sums(
        values.len(),
        #[inline(always)]
        |at| {
            let code = code_of(values[at], inverse, line.zero, max);
            [values[at], code, values[at] * code, code * code]
        },
    );
    let spread = count * cc - c * c;
    let scale = (count * xc - x * c) / spread;
    // Equal codes, or a scale that nothing can be divided by.
    if spread <= 0.0 || !scale.is_normal() { line } else { Line::of_zero(width, scale, (c - x / scale) / count) }
}

/// The squared error of the nearest codes. Infinite for a line that float16 does not have.
#[inline(always)]
pub(super) fn error(width: Width, values: &[f32], line: Line) -> f32 {
    let (inverse, max, middle) = (inverse(line.scale), f32::from(width.code_max()), f32::from(width.middle()));
    let [error] = sums(
        values.len(),
        #[inline(always)]
        |at| {
            let found = (code_of(values[at], inverse, line.zero, max) - middle) * line.scale + line.offset;
            [(values[at] - found) * (values[at] - found)]
        },
    );
    if error.is_nan() { f32::INFINITY } else { error }
}
