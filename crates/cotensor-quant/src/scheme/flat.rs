//! One scale for each group: `round`, `search` and `affine`.

use crate::codes::{GROUP_MAX, pack};
use crate::lanes::{WHOLE, extremes, nearest, sums};
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

/// An element is `(code − middle) · scale + offset`.
#[derive(Clone, Copy)]
pub(super) struct Line {
    pub(super) scale: f32,
    pub(super) offset: f32,
    /// The code of zero, which may lie between codes. The middle one for a scale of zero.
    pub(super) zero: f32,
}

impl Line {
    #[inline(always)]
    pub(super) fn new(width: Width, scale: f32, offset: f32) -> Self {
        let zero = f32::from(width.middle()) - if scale == 0.0 { 0.0 } else { offset / scale };
        Self { scale, offset, zero }
    }

    #[inline(always)]
    fn of_zero(width: Width, scale: f32, zero: f32) -> Self {
        Self { scale, offset: (f32::from(width.middle()) - zero) * scale, zero }
    }

    /// As float16 keeps it.
    #[inline(always)]
    pub(super) fn stored(self, width: Width) -> Self {
        Self::new(width, stored(self.scale), stored(self.offset))
    }
}

/// Fits the groups of a row.
#[inline(always)]
pub(super) fn quantize(
    width: Width,
    row: usize,
    weights: &[f32],
    tensor: &mut QuantTensor,
    fit: impl Fn(Width, &[f32]) -> Line,
) {
    let group = tensor.spec().group();
    let first = row * weights.len() / group;
    let (codes, scales) = tensor.parts_mut();
    let Scales::Flat { scales, offsets } = scales else { return };
    let mut unpacked = [0; GROUP_MAX];
    let unpacked = &mut unpacked[..group];
    let codes = &mut codes[width.bytes(first * group)..];
    let parts = weights.chunks_exact(group).zip(codes.chunks_exact_mut(width.bytes(group)));
    for (number, (values, bytes)) in (first..).zip(parts) {
        let line = fit(width, values).stored(width);
        scales[number] = f16::from_f32(line.scale);
        if let Some(offsets) = offsets {
            offsets[number] = f16::from_f32(line.offset);
        }
        encode(width, values, line, unpacked);
        pack(width, unpacked, bytes);
    }
}

/// The nearest codes.
#[inline(always)]
pub(super) fn encode(width: Width, values: &[f32], line: Line, codes: &mut [u8]) {
    let (inverse, max) = (inverse(line.scale), f32::from(width.code_max()));
    for (code, &value) in codes.iter_mut().zip(values) {
        // The lowest bits of a float of this size are the whole number.
        *code = (code_of(value, inverse, line.zero, max) + WHOLE).to_bits() as u8;
    }
}

/// Zero for a group of zeros.
#[inline(always)]
pub(super) fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// The nearest code as a number.
#[inline(always)]
pub(super) fn code_of(value: f32, inverse: f32, zero: f32, max: f32) -> f32 {
    nearest_within(value * inverse + zero, max)
}

/// The nearest code from 0 to `max`.
#[inline(always)]
pub(super) fn nearest_within(code: f32, max: f32) -> f32 {
    let code = if code < max { code } else { max };
    nearest(if code > 0.0 { code } else { 0.0 })
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

/// As float16 keeps it.
#[inline(always)]
pub(super) fn stored(value: f32) -> f32 {
    f16::from_f32(value).to_f32()
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
