//! Conversions between float16 and float32, with the instructions of the processor.

use rten_simd::ops::{BitOps, Extend, NarrowSaturate};
use rten_simd::{Isa, SimdOp, f16};

/// A number as float16 keeps it.
#[inline(always)]
pub(crate) fn stored(value: f32) -> f32 {
    f16::from_f32(value).to_f32()
}

/// The values of float16 numbers.
pub(crate) fn widen(halves: &[f16], out: &mut [f32]) {
    struct Widen<'a>(&'a [f16], &'a mut [f32]);

    impl SimdOp for Widen<'_> {
        type Output = ();

        #[inline(always)]
        fn eval<I: Isa>(self, isa: I) {
            let (floats, halves) = (isa.f32(), isa.f16());
            let both = halves.len();
            let (mut from, mut to) = (self.0.chunks_exact(both), self.1.chunks_exact_mut(both));
            for (from, to) in from.by_ref().zip(to.by_ref()) {
                let (low, high) = to.split_at_mut(floats.len());
                let loaded = halves.load(from);
                floats.store(halves.extend_low(loaded), low);
                floats.store(halves.extend_high(loaded), high);
            }
            for (from, to) in from.remainder().iter().zip(to.into_remainder()) {
                *to = from.to_f32();
            }
        }
    }

    Widen(halves, out).dispatch();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_are_those_of_single_numbers() {
        let halves: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).filter(|half| !half.to_f32().is_nan()).collect();
        for count in [halves.len(), 1, 7, 33] {
            let halves = &halves[halves.len() - count..];
            let mut values = vec![0.0; count];
            widen(halves, &mut values);
            assert!(values.iter().zip(halves).all(|(value, half)| value.to_bits() == half.to_f32().to_bits()));
            // Between two neighbours, and as they are.
            let between: Vec<f32> =
                values.iter().map(|value| value * 1.000_3).filter(|value| value.abs() < 65_504.0).collect();
            for values in [&between, &values.iter().copied().filter(|value| value.is_finite()).collect()] {
                let mut found = vec![f16::from_bits(0); values.len()];
                narrow(values, &mut found);
                for (value, found) in values.iter().zip(found) {
                    assert_eq!(found.to_bits(), f16::from_f32(*value).to_bits(), "{value}");
                }
            }
        }
    }
}
