//! The line of a group, and the nearest codes of its elements: of a group alone, and of all groups of a row.

use crate::codes::pack;
use crate::expand::{RUN, SCALED};
use crate::halves::stored;
use crate::lanes::{WHOLE, nearest, vectorized, with_width_and_group};
use crate::spec::Width;

/// An element is `(code − middle) · scale + offset`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    pub(crate) scale: f32,
    pub(crate) offset: f32,
    /// The code of zero, which may lie between codes. The middle one for a scale of zero.
    pub(crate) zero: f32,
}

impl Line {
    #[inline(always)]
    pub(crate) fn new(width: Width, scale: f32, offset: f32) -> Self {
        let zero = f32::from(width.middle()) - if scale == 0.0 { 0.0 } else { offset / scale };
        Self { scale, offset, zero }
    }

    #[inline(always)]
    pub(crate) fn of_zero(width: Width, scale: f32, zero: f32) -> Self {
        Self { scale, offset: (f32::from(width.middle()) - zero) * scale, zero }
    }

    /// As float16 keeps it.
    #[inline(always)]
    pub(crate) fn stored(self, width: Width) -> Self {
        Self::new(width, stored(self.scale), stored(self.offset))
    }
}

/// Zero for a group of zeros.
#[inline(always)]
pub(crate) fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// The nearest code as a number.
#[inline(always)]
pub(crate) fn code_of(value: f32, inverse: f32, zero: f32, max: f32) -> f32 {
    nearest_within(value * inverse + zero, max)
}

/// The nearest code from 0 to `max`.
#[inline(always)]
pub(crate) fn nearest_within(code: f32, max: f32) -> f32 {
    let code = if code < max { code } else { max };
    nearest(if code > 0.0 { code } else { 0.0 })
}

/// A code that is a whole number as a byte: the lowest bits of a float of this size are the number.
#[inline(always)]
fn byte(code: f32) -> u8 {
    (code + WHOLE).to_bits() as u8
}

/// The nearest codes of a group.
#[inline(always)]
pub(crate) fn encode(width: Width, values: &[f32], line: Line, codes: &mut [u8]) {
    let (inverse, max) = (inverse(line.scale), f32::from(width.code_max()));
    for (code, &value) in codes.iter_mut().zip(values) {
        *code = byte(code_of(value, inverse, line.zero, max));
    }
}

/// Packs the nearest codes of a row, whose groups have the lines `lines`.
pub(crate) fn encode_row(width: Width, group: usize, values: &[f32], lines: &[Line], codes: &mut [u8]) {
    with_width_and_group!(width, group, of_group(values, lines, codes));
}

fn of_group<const BITS: u32, const GROUP: usize>(values: &[f32], lines: &[Line], codes: &mut [u8]) {
    vectorized(
        #[inline(always)]
        || {
            let width = const { Width::of_const(BITS) };
            let (runs, rest) = values.as_chunks::<RUN>();
            let (of_runs, of_rest) = codes.split_at_mut(width.bytes(runs.len() * RUN));
            let (lines_of_runs, lines_of_rest) = lines.split_at(runs.len() * (RUN / GROUP));
            let lines_of_runs = lines_of_runs.chunks_exact(RUN / GROUP);
            for ((values, lines), bytes) in
                runs.iter().zip(lines_of_runs).zip(of_runs.chunks_exact_mut(width.bytes(RUN)))
            {
                let mut unpacked = [0; RUN];
                if GROUP == 16 {
                    encode_several(width, values, lines, &mut unpacked);
                } else {
                    let groups = values.as_chunks::<GROUP>().0.iter().zip(unpacked.as_chunks_mut::<GROUP>().0);
                    for (line, (values, codes)) in lines.iter().zip(groups) {
                        encode(width, values, *line, codes);
                    }
                }
                pack_run::<BITS, GROUP>(&unpacked, bytes);
            }
            let groups = rest.as_chunks::<GROUP>().0.iter().zip(of_rest.chunks_exact_mut(width.bytes(GROUP)));
            for (line, (values, bytes)) in lines_of_rest.iter().zip(groups) {
                let mut unpacked = [0; GROUP];
                encode(width, values, *line, &mut unpacked);
                pack(width, &unpacked, bytes);
            }
        },
    );
}

/// The codes of groups of 16, [`SCALED`] at a time: a loop over 16 would be unrolled, and the loop over groups would gather.
#[inline(always)]
fn encode_several(width: Width, values: &[f32; RUN], lines: &[Line], codes: &mut [u8; RUN]) {
    let max = f32::from(width.code_max());
    let groups = values.as_chunks::<SCALED>().0.iter().zip(codes.as_chunks_mut::<SCALED>().0);
    for (lines, (values, codes)) in lines.as_chunks::<{ SCALED / 16 }>().0.iter().zip(groups) {
        let (mut inverses, mut zeros) = ([0.0; SCALED], [0.0; SCALED]);
        for (number, line) in lines.iter().enumerate() {
            let at = number * 16..(number + 1) * 16;
            inverses[at.clone()].fill(inverse(line.scale));
            zeros[at].fill(line.zero);
        }
        for at in 0..SCALED {
            codes[at] = byte(code_of(values[at], inverses[at], zeros[at], max));
        }
    }
}

/// Packs the codes of several groups together.
#[inline(always)]
fn pack_run<const BITS: u32, const GROUP: usize>(codes: &[u8; RUN], bytes: &mut [u8]) {
    let width = const { Width::of_const(BITS) };
    if GROUP == RUN || BITS != 3 {
        return pack(width, codes, bytes);
    }
    let mut planes = [0; RUN / 8 * 3];
    pack(width, codes, &mut planes);
    let (low, high) = planes.split_at(RUN / 4);
    let groups = low.chunks_exact(GROUP / 4).zip(high.chunks_exact(GROUP / 8));
    for (bytes, (low, high)) in bytes.chunks_exact_mut(GROUP / 8 * 3).zip(groups) {
        bytes[..GROUP / 4].copy_from_slice(low);
        bytes[GROUP / 4..].copy_from_slice(high);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codes::unpack;
    use crate::expand::expand_row;
    use crate::scales::GroupScale;

    /// A row of two runs and a further group, which is a run itself if it has 256 elements; each group by itself.
    #[test]
    fn runs_give_the_codes_and_elements_of_single_groups() {
        const SCALES: [f32; 6] = [0.01, 0.0, -0.02, 6e-8, 0.5, -0.0];
        for width in Width::ALL {
            for group in [16, 32, 64, 128, 256] {
                let columns = 2 * RUN + group;
                let mut values: Vec<f32> = (0..columns).map(|at| ((at * 37) % 101) as f32 / 50.0 - 1.0).collect();
                for (at, value) in values.iter_mut().enumerate().filter(|(at, _)| at % 11 == 0) {
                    *value = [-0.0, f32::from_bits(1), 0.0][at % 3];
                }
                let lines: Vec<Line> = (0..columns / group)
                    .map(|at| Line::new(width, SCALES[at % SCALES.len()], (at % 4) as f32 / 7.0))
                    .collect();
                let mut bytes = vec![0; width.bytes(columns)];
                encode_row(width, group, &values, &lines, &mut bytes);
                let scales: Vec<GroupScale> =
                    lines.iter().map(|line| GroupScale { scale: line.scale, zero: line.zero, offset: 0.5 }).collect();
                let mut elements = vec![0.0; columns];
                expand_row(width, group, &bytes, &scales, &mut elements);

                for (number, line) in lines.iter().enumerate() {
                    let at = number * group..(number + 1) * group;
                    let (mut codes, mut packed) = (vec![0; group], vec![0; width.bytes(group)]);
                    encode(width, &values[at.clone()], *line, &mut codes);
                    pack(width, &codes, &mut packed);
                    assert_eq!(packed, bytes[width.bytes(at.start)..width.bytes(at.end)], "{width:?} {group}");
                    unpack(width, &packed, &mut codes);
                    let expected = codes.iter().map(|code| (f32::from(*code) - line.zero) * line.scale + 0.5);
                    let found = elements[at].iter().map(|value| value.to_bits());
                    assert!(expected.map(f32::to_bits).eq(found), "{width:?} {group}");
                }
            }
        }
    }
}
