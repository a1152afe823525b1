//! Codes whose errors compensate each other for known inputs.
//!
//! Columns are rounded from the last to the first. Each takes up what the errors of those before it add to the result, as far as one
//! column can: the order and the update are those of GPTQ (Frantar et al., 2022, arXiv:2210.17323), written with the Cholesky factor
//! of the moments instead of that of their inverse.

use super::flat::{Line, affine, code_of, inverse, rounded, search};
use crate::codes::{GROUP_MAX, pack};
use crate::inputs::InputFactor;
use crate::lanes::{sums, vectorized};
use crate::scales::{F16_MAX, Scales};
use crate::spec::Scheme;
use crate::tensor::QuantTensor;
use rten_simd::f16;

/// Fits the rows of a matrix.
pub(super) fn quantize(weights: &[f32], tensor: &mut QuantTensor, factor: &InputFactor) {
    vectorized(
        #[inline(always)]
        || {
            let columns = tensor.columns();
            let mut errors = vec![0.0; columns];
            for (row, weights) in weights.chunks_exact(columns).enumerate() {
                errors.fill(0.0);
                of_row(row, weights, tensor, factor, &mut errors);
            }
        },
    );
}

/// Fits one row. `errors` are zeros.
#[inline(always)]
fn of_row(row: usize, weights: &[f32], tensor: &mut QuantTensor, factor: &InputFactor, errors: &mut [f32]) {
    let (width, group, scheme) = (tensor.spec().width(), tensor.spec().group(), tensor.spec().scheme());
    let first = row * weights.len() / group;
    let (codes, scales) = tensor.parts_mut();
    let Scales::Flat { scales, offsets } = scales else { return };
    let (max, middle) = (f32::from(width.code_max()), f32::from(width.middle()));
    let mut unpacked = [0; GROUP_MAX];
    let mut targets = [0.0; GROUP_MAX];
    let mut later = [0.0; GROUP_MAX];
    for number in (0..weights.len() / group).rev() {
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
        let line = match scheme {
            Scheme::Round => rounded(width, targets),
            Scheme::Affine => affine(width, targets),
            Scheme::Search | Scheme::TwoLevel => search(width, targets),
        };
        let line = line.stored(width);
        scales[first + number] = f16::from_f32(line.scale);
        if let Some(offsets) = offsets.as_mut() {
            offsets[first + number] = f16::from_f32(line.offset);
        }
        let Line { scale, offset, zero } = line;
        let inverse = inverse(scale);
        for at in (start..end).rev() {
            let target = within(weights[at] + added(factor, errors, later[at - start], at, end));
            let code = code_of(target, inverse, zero, max);
            unpacked[at - start] = code as u8;
            errors[at] = weights[at] - ((code - middle) * scale + offset);
        }
        let bytes = width.bytes((first + number) * group)..width.bytes((first + number + 1) * group);
        pack(width, &unpacked[..group], &mut codes[bytes]);
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
