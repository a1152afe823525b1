//! The elements of a row of codes.

use crate::codes::unpack;
use crate::lanes::vectorized;
use crate::scales::GroupScale;
use crate::spec::{QuantSpec, Width};
use rten_simd::ops::{BitOps, NarrowSaturate};
use rten_simd::{Isa, SimdOp, f16};

/// Writes the elements of a row.
pub(crate) fn expand(spec: &QuantSpec, codes: &[u8], scales: &[GroupScale], out: &mut [f32]) {
    expand_row(spec.width(), spec.group(), codes, scales, out);
}

/// Writes the elements of a row whose codes have this width and these groups.
pub(crate) fn expand_row(width: Width, group: usize, codes: &[u8], scales: &[GroupScale], out: &mut [f32]) {
    // One loop for each width and group.
    match width {
        Width::Two => of_width::<2>(group, codes, scales, out),
        Width::Three => of_width::<3>(group, codes, scales, out),
        Width::Four => of_width::<4>(group, codes, scales, out),
        Width::Eight => of_width::<8>(group, codes, scales, out),
    }
}

fn of_width<const BITS: u32>(group: usize, codes: &[u8], scales: &[GroupScale], out: &mut [f32]) {
    match group {
        16 => of_group::<BITS, 16>(codes, scales, out),
        32 => of_group::<BITS, 32>(codes, scales, out),
        64 => of_group::<BITS, 64>(codes, scales, out),
        128 => of_group::<BITS, 128>(codes, scales, out),
        _ => of_group::<BITS, 256>(codes, scales, out),
    }
}

fn of_group<const BITS: u32, const GROUP: usize>(codes: &[u8], scales: &[GroupScale], out: &mut [f32]) {
    vectorized(
        #[inline(always)]
        || {
            let width = const { Width::of_const(BITS) };
            let groups = codes.chunks_exact(width.bytes(GROUP)).zip(out.as_chunks_mut::<GROUP>().0);
            for (scale, (bytes, out)) in scales.iter().zip(groups) {
                let mut unpacked = [0; GROUP];
                unpack(width, bytes, &mut unpacked);
                for (value, code) in out.iter_mut().zip(unpacked) {
                    *value = (f32::from(code) - scale.zero) * scale.scale + scale.offset;
                }
            }
        },
    );
}

/// Rounds to float16, ties to the even one.
pub(crate) fn narrow(values: &[f32], out: &mut [f16]) {
    struct Narrow<'a>(&'a [f32], &'a mut [f16]);

    impl SimdOp for Narrow<'_> {
        type Output = ();

        #[inline(always)]
        fn eval<I: Isa>(self, isa: I) {
            let (floats, halves) = (isa.f32(), isa.f16());
            let both = 2 * floats.len();
            let (mut from, mut to) = (self.0.chunks_exact(both), self.1.chunks_exact_mut(both));
            for (from, to) in from.by_ref().zip(to.by_ref()) {
                let (low, high) = from.split_at(floats.len());
                halves.store(floats.narrow_saturate(floats.load(low), floats.load(high)), to);
            }
            for (from, to) in from.remainder().iter().zip(to.into_remainder()) {
                *to = f16::from_f32(*from);
            }
        }
    }

    Narrow(values, out).dispatch();
}
