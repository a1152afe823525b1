//! The elements of a row of codes.

use crate::codes::unpack;
use crate::lanes::{vectorized, with_width_and_group};
use crate::scales::GroupScale;
use crate::spec::{QuantSpec, Width};

/// Elements whose codes are unpacked together: a group or several.
pub(crate) const RUN: usize = 256;
/// Elements of groups of 16 that are scaled together.
pub(crate) const SCALED: usize = 64;

/// Writes the elements of a row.
pub(crate) fn expand(spec: &QuantSpec, codes: &[u8], scales: &[GroupScale], out: &mut [f32]) {
    expand_row(spec.width(), spec.group(), codes, scales, out);
}

/// Writes the elements of a row whose codes have this width and these groups.
pub(crate) fn expand_row(width: Width, group: usize, codes: &[u8], scales: &[GroupScale], out: &mut [f32]) {
    with_width_and_group!(width, group, of_group(codes, scales, out));
}

fn of_group<const BITS: u32, const GROUP: usize>(codes: &[u8], scales: &[GroupScale], out: &mut [f32]) {
    vectorized(
        #[inline(always)]
        || {
            let width = const { Width::of_const(BITS) };
            let (run_bytes, group_bytes) = (width.bytes(RUN), width.bytes(GROUP));
            let (runs, rest) = out.as_chunks_mut::<RUN>();
            let rest_at = runs.len() * RUN;
            for (number, out) in runs.iter_mut().enumerate() {
                let mut unpacked = [0; RUN];
                unpack_run::<BITS, GROUP>(&codes[number * run_bytes..(number + 1) * run_bytes], &mut unpacked);
                let scales = &scales[number * (RUN / GROUP)..(number + 1) * (RUN / GROUP)];
                scale::<GROUP>(&unpacked, scales, out);
            }
            let (codes, scales) = (&codes[width.bytes(rest_at)..], &scales[rest_at / GROUP..]);
            for ((bytes, scale_of), out) in
                codes.chunks_exact(group_bytes).zip(scales).zip(rest.as_chunks_mut::<GROUP>().0)
            {
                let mut unpacked = [0; GROUP];
                unpack(width, bytes, &mut unpacked);
                scale::<GROUP>(&unpacked, std::slice::from_ref(scale_of), out);
            }
        },
    );
}

/// Unpacks the codes of several groups together: loops of this length become vectors, those of a small group do not.
#[inline(always)]
fn unpack_run<const BITS: u32, const GROUP: usize>(bytes: &[u8], codes: &mut [u8; RUN]) {
    let width = const { Width::of_const(BITS) };
    if GROUP == RUN || BITS != 3 {
        return unpack(width, bytes, codes);
    }
    // The planes of all groups, one after the other.
    let mut planes = [0; RUN / 8 * 3];
    let (low, high) = planes.split_at_mut(RUN / 4);
    let groups = low.chunks_exact_mut(GROUP / 4).zip(high.chunks_exact_mut(GROUP / 8));
    for (bytes, (low, high)) in bytes.chunks_exact(GROUP / 8 * 3).zip(groups) {
        low.copy_from_slice(&bytes[..GROUP / 4]);
        high.copy_from_slice(&bytes[GROUP / 4..]);
    }
    unpack(width, &planes, codes);
}

/// The elements of groups.
#[inline(always)]
fn scale<const GROUP: usize>(codes: &[u8], scales: &[GroupScale], out: &mut [f32]) {
    if GROUP == 16 && codes.len() >= SCALED {
        return scale_several(codes, scales, out);
    }
    let groups = codes.as_chunks::<GROUP>().0.iter().zip(out.as_chunks_mut::<GROUP>().0);
    for (scale, (codes, out)) in scales.iter().zip(groups) {
        for (value, code) in out.iter_mut().zip(codes) {
            *value = (f32::from(*code) - scale.zero) * scale.scale + scale.offset;
        }
    }
}

/// The elements of groups of 16, [`SCALED`] at a time: a loop over 16 would be unrolled, and the loop over groups would gather.
#[inline(always)]
fn scale_several(codes: &[u8], scales: &[GroupScale], out: &mut [f32]) {
    let groups = codes.as_chunks::<SCALED>().0.iter().zip(out.as_chunks_mut::<SCALED>().0);
    for (groups, (codes, out)) in scales.as_chunks::<{ SCALED / 16 }>().0.iter().zip(groups) {
        let (mut scale, mut zero, mut offset) = ([0.0; SCALED], [0.0; SCALED], [0.0; SCALED]);
        for (number, group) in groups.iter().enumerate() {
            let at = number * 16..(number + 1) * 16;
            scale[at.clone()].fill(group.scale);
            zero[at.clone()].fill(group.zero);
            offset[at].fill(group.offset);
        }
        for at in 0..SCALED {
            out[at] = (f32::from(codes[at]) - zero[at]) * scale[at] + offset[at];
        }
    }
}
