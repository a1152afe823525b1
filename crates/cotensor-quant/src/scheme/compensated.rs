//! Codes whose errors compensate each other for known inputs.
//!
//! Columns are rounded from the last to the first. Each takes up what the errors of those before it add to the result, as far as one
//! column can: the order and the update are those of GPTQ (Frantar et al., 2022, arXiv:2210.17323), written with the Cholesky factor
//! of the moments instead of that of their inverse. Then scales and codes are fitted again, one by one.

use super::flat::{affine, rounded, search};
use super::refined::Row;
use crate::codes::{GROUP_MAX, pack};
use crate::encode::{Line, code_of, inverse};
use crate::inputs::InputFactor;
use crate::lanes::{sums, vectorized};
use crate::scales::{F16_MAX, Scales};
use crate::spec::{QuantSpec, Scheme};
use crate::tensor::QuantTensor;
use rten_simd::f16;

/// Fits the rows of a matrix.
pub(super) fn quantize(weights: &[f32], tensor: &mut QuantTensor, factor: &InputFactor) {
    vectorized(
        #[inline(always)]
        || {
            let (spec, columns) = (*tensor.spec(), tensor.columns());
            let mut row = Row::new(spec.width(), spec.scheme(), spec.group(), columns);
            for (number, weights) in weights.chunks_exact(columns).enumerate() {
                start(&mut row, &spec, weights, factor);
                row.refine(factor);
                store(&row, number, tensor);
            }
        },
    );
}

/// Writes the codes and the scales of a row.
#[inline(always)]
fn store(row: &Row, number: usize, tensor: &mut QuantTensor) {
    let (width, group) = (tensor.spec().width(), row.group);
    let (codes, scales) = tensor.parts_mut();
    let Scales::Flat { scales, offsets } = scales else { return };
    let first = number * row.lines.len();
    let mut unpacked = [0; GROUP_MAX];
    let middle = f32::from(width.middle());
    for ((at, line), levels) in (first..).zip(&row.lines).zip(row.levels.chunks_exact(group)) {
        scales[at] = f16::from_f32(line.scale);
        if let Some(offsets) = offsets.as_mut() {
            offsets[at] = f16::from_f32(line.offset);
        }
        for (code, level) in unpacked.iter_mut().zip(levels) {
            *code = (level + middle) as u8;
        }
        pack(width, &unpacked[..group], &mut codes[width.bytes(at * group)..width.bytes((at + 1) * group)]);
    }
}

/// Rounds a row, from the last column to the first.
#[inline(always)]
fn start(row: &mut Row, spec: &QuantSpec, weights: &[f32], factor: &InputFactor) {
    let (width, group) = (spec.width(), spec.group());
    let Row { lines, levels, errors, .. } = row;
    let (max, middle) = (f32::from(width.code_max()), f32::from(width.middle()));
    let mut targets = [0.0; GROUP_MAX];
    let mut later = [0.0; GROUP_MAX];
    errors.fill(0.0);
    for (number, stored) in lines.iter_mut().enumerate().rev() {
        let (start, end) = (number * group, (number + 1) * group);
        // What the errors of later columns add, by column.
        for (later, at) in later.iter_mut().zip(start..end) {
            let factors = &factor.row(at)[end..];
            let errors = &errors[end..];
            [*later] = sums(
                errors.len(),
                #[inline(always)]
                |at| [factors[at] * errors[at]],
            );
        }
        // The best weights if nothing in the group were rounded.
        for at in (start..end).rev() {
            let target = within(weights[at] + added(factor, errors, later[at - start], at, end));
            targets[at - start] = target;
            errors[at] = weights[at] - target;
        }
        let targets = &targets[..group];
        let line = match spec.scheme() {
            Scheme::Round => rounded(width, targets),
            Scheme::Affine => affine(width, targets),
            Scheme::Search | Scheme::TwoLevel => search(width, targets),
        };
        *stored = line.stored(width);
        let Line { scale, offset, zero } = *stored;
        let inverse = inverse(scale);
        for at in (start..end).rev() {
            let target = within(weights[at] + added(factor, errors, later[at - start], at, end));
            let code = code_of(target, inverse, zero, max);
            levels[at] = code - middle;
            errors[at] = weights[at] - ((code - middle) * scale + offset);
        }
    }
}

/// A weight that float16 has.
#[inline(always)]
fn within(weight: f32) -> f32 {
    weight.clamp(-F16_MAX, F16_MAX)
}

/// By how much column `at` has to differ from its weight to take up the errors of the columns after it, of which those from `end` on
/// add `later`.
#[inline(always)]
fn added(factor: &InputFactor, errors: &[f32], later: f32, at: usize, end: usize) -> f32 {
    let factors = factor.row(at);
    let mut sum = later;
    for other in at + 1..end {
        sum += factors[other] * errors[other];
    }
    sum / factors[at]
}
