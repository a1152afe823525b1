//! Scales of groups that are small multiples of a super-group's, as the k-quants of GGUF have them.

use super::flat::{affine, search};
use crate::codes::{pack, pack_stream};
use crate::encode::{Line, encode};
use crate::halves::stored;
use crate::lanes::{nearest, sums};
use crate::scales::{Parts, Scales};
use crate::spec::{QuantSpec, SUPER_GROUP, Width};
use crate::tensor::QuantTensor;
use rten_simd::f16;

/// The most groups of a super-group.
const GROUPS_MAX: usize = SUPER_GROUP / 16;

/// How often the scales of a super-group are fitted to the codes that they give.
const ROUNDS: usize = 3;

/// A super-group while it is fitted: an element is `(code − zero) · scale · multiple − minimum · offset_multiple`.
struct Super {
    width: Width,
    kind: Parts,
    group: usize,
    zero: f32,
    scale: f32,
    minimum: f32,
    /// Of the scale and of the minimum, by group. With a sign, if groups have no minimum.
    multiples: [[f32; GROUPS_MAX]; 2],
    codes: [u8; SUPER_GROUP],
}

/// Fits the super-groups of a row.
#[inline(always)]
pub(super) fn quantize(width: Width, row: usize, weights: &[f32], tensor: &mut QuantTensor) {
    let spec = *tensor.spec();
    let (group, kind) = (spec.group(), Parts::of(&spec));
    let (codes, scales) = tensor.parts_mut();
    let Scales::TwoLevel { scales, minimums, parts } = scales else { return };
    let first = row * weights.len() / SUPER_GROUP;
    for (number, values) in (first..).zip(weights.chunks_exact(SUPER_GROUP)) {
        let mut fitted = Super::new(&spec);
        fitted.start(values);
        for _ in 0..ROUNDS {
            fitted.choose(values);
            fitted.fit(values);
        }
        fitted.choose(values);
        scales[number] = f16::from_f32(fitted.scale);
        if let Some(minimums) = minimums {
            minimums[number] = f16::from_f32(fitted.minimum);
        }
        let bytes = number * kind.bytes()..(number + 1) * kind.bytes();
        pack_stream(kind.bits, &fitted.stored_multiples()[..kind.count()], &mut parts[bytes]);
        let bytes = number * width.bytes(SUPER_GROUP)..(number + 1) * width.bytes(SUPER_GROUP);
        let groups = fitted.codes.chunks_exact(group).zip(codes[bytes].chunks_exact_mut(width.bytes(group)));
        for (codes, bytes) in groups {
            pack(width, codes, bytes);
        }
    }
}

impl Super {
    fn new(spec: &QuantSpec) -> Self {
        let kind = Parts::of(spec);
        let zero = if kind.minimums { 0.0 } else { f32::from(spec.width().middle()) };
        Self {
            width: spec.width(),
            kind,
            group: spec.group(),
            zero,
            scale: 0.0,
            minimum: 0.0,
            multiples: [[0.0; GROUPS_MAX]; 2],
            codes: [0; SUPER_GROUP],
        }
    }

    /// The largest multiple.
    fn multiple_max(&self) -> f32 {
        let all = (1u32 << self.kind.bits) - 1;
        if self.kind.minimums { all as f32 } else { (all / 2) as f32 }
    }

    /// Scales of the groups alone, and the super-group's scales that have them as multiples.
    #[inline(always)]
    fn start(&mut self, values: &[f32]) {
        let mut own = [[0.0f32; GROUPS_MAX]; 2];
        for (number, part) in values.chunks_exact(self.group).enumerate() {
            let line = if self.kind.minimums { with_minimum(self.width, part) } else { search(self.width, part) };
            own[0][number] = line.scale;
            own[1][number] = if self.kind.minimums { minimum(self.width, line) } else { 0.0 };
        }
        let most = |values: &[f32]| values.iter().fold(0.0f32, |most, value| most.max(value.abs()));
        let most = [most(&own[0]), most(&own[1])].map(|most| most / self.multiple_max());
        (self.scale, self.minimum) = (stored(most[0]), stored(most[1]));
        for (own, (multiples, unit)) in own.iter().zip(self.multiples.iter_mut().zip([self.scale, self.minimum])) {
            for (own, multiple) in own.iter().zip(multiples) {
                *multiple = if unit == 0.0 { 0.0 } else { nearest(own / unit) };
            }
        }
    }

    /// For each group, the multiples near the present ones that give the least error, and the codes.
    #[inline(always)]
    fn choose(&mut self, values: &[f32]) {
        let max = self.multiple_max();
        let low = if self.kind.minimums { 0.0 } else { -max - 1.0 };
        for (number, part) in values.chunks_exact(self.group).enumerate() {
            let now = [self.multiples[0][number], self.multiples[1][number]];
            let mut best = (f32::INFINITY, now);
            let second: &[f32] = if self.kind.minimums { &[0.0, -1.0, 1.0] } else { &[0.0] };
            for first in [0.0, -1.0, 1.0] {
                for second in second {
                    let tried = [(now[0] + first).clamp(low, max), (now[1] + second).clamp(0.0, max)];
                    let found = self.error(part, tried);
                    if found < best.0 {
                        best = (found, tried);
                    }
                }
            }
            (self.multiples[0][number], self.multiples[1][number]) = (best.1[0], best.1[1]);
            let line = self.line(best.1);
            let codes = number * self.group..(number + 1) * self.group;
            encode(self.width, part, line, &mut self.codes[codes]);
        }
    }

    /// The line that gives the codes of a group.
    #[inline(always)]
    fn line(&self, multiples: [f32; 2]) -> Line {
        let scale = self.scale * multiples[0];
        let offset = self.minimum * multiples[1];
        Line { scale, offset: -offset, zero: self.zero + if scale == 0.0 { 0.0 } else { offset / scale } }
    }

    #[inline(always)]
    fn error(&self, part: &[f32], multiples: [f32; 2]) -> f32 {
        let (scale, offset) = (self.scale * multiples[0], self.minimum * multiples[1]);
        let mut codes = [0; SUPER_GROUP];
        encode(self.width, part, self.line(multiples), &mut codes[..part.len()]);
        let [error] = sums(
            part.len(),
            #[inline(always)]
            |at| {
                let found = (f32::from(codes[at]) - self.zero) * scale - offset;
                [(part[at] - found) * (part[at] - found)]
            },
        );
        error
    }

    /// The super-group's scales of the least squared error for the present codes and multiples.
    #[inline(always)]
    fn fit(&mut self, values: &[f32]) {
        let [mut xa, mut xb, mut aa, mut ab, mut bb] = [0.0f32; 5];
        for (number, part) in values.chunks_exact(self.group).enumerate() {
            let (first, second) = (self.multiples[0][number], self.multiples[1][number]);
            let codes = &self.codes[number * self.group..(number + 1) * self.group];
            let found = sums(
                part.len(),
                #[inline(always)]
                |at| {
                    let a = (f32::from(codes[at]) - self.zero) * first;
                    [part[at] * a, part[at] * second, a * a, a * second, second * second]
                },
            );
            xa += found[0];
            xb += found[1];
            aa += found[2];
            ab += found[3];
            bb += found[4];
        }
        // x ≈ scale · a − minimum · b
        let (scale, minimum) = match aa * bb - ab * ab {
            _ if bb == 0.0 => (xa / aa, self.minimum),
            spread => ((xa * bb - xb * ab) / spread, (xa * ab - xb * aa) / spread),
        };
        let (scale, minimum) = (stored(scale), stored(minimum));
        if scale.is_finite() && minimum.is_finite() && minimum >= 0.0 {
            (self.scale, self.minimum) = (scale, minimum);
        }
    }

    fn stored_multiples(&self) -> [u8; 2 * GROUPS_MAX] {
        let mut found = [0; 2 * GROUPS_MAX];
        let middle = f32::from(self.kind.middle());
        for group in 0..self.kind.groups {
            found[group] = (self.multiples[0][group] + middle) as u8;
            if self.kind.minimums {
                found[self.kind.groups + group] = self.multiples[1][group] as u8;
            }
        }
        found
    }
}

/// The negative element of code 0.
#[inline(always)]
fn minimum(width: Width, line: Line) -> f32 {
    f32::from(width.middle()) * line.scale - line.offset
}

/// A line with a minimum that is not negative, and a positive scale.
#[inline(always)]
fn with_minimum(width: Width, part: &[f32]) -> Line {
    let line = affine(width, part);
    let line = if line.scale < 0.0 {
        // The codes from the other end.
        Line::new(width, -line.scale, line.offset - line.scale)
    } else {
        line
    };
    if minimum(width, line) >= 0.0 {
        return line;
    }
    // All values are positive: the range begins at zero.
    let most = part.iter().fold(0.0f32, |most, value| most.max(*value));
    let scale = most / f32::from(width.code_max());
    Line::new(width, scale, f32::from(width.middle()) * scale)
}
