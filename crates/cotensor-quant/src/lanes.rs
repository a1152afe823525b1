//! Loops that the compiler makes vectors of, for the widest instructions of the processor.

use rten_simd::{Isa, SimdOp};

/// Partial results of a reduction. It is the same for all instruction sets, so that they add in the same order.
pub(crate) const LANES: usize = 16;

/// Runs `function`, compiled for the widest vector instructions that this processor has. All that it calls must be inlined.
pub(crate) fn vectorized<R>(function: impl FnOnce() -> R) -> R {
    struct Op<F>(F);

    impl<R, F: FnOnce() -> R> SimdOp for Op<F> {
        type Output = R;

        #[inline(always)]
        fn eval<I: Isa>(self, _: I) -> R {
            (self.0)()
        }
    }

    Op(function).dispatch()
}

/// Calls a function with the bits of a width and with a group as its constants: one loop is compiled for each of both.
macro_rules! with_width_and_group {
    ($width:expr, $group:expr, $function:ident $arguments:tt) => {
        match $width {
            Width::Two => with_width_and_group!(@ 2, $group, $function $arguments),
            Width::Three => with_width_and_group!(@ 3, $group, $function $arguments),
            Width::Four => with_width_and_group!(@ 4, $group, $function $arguments),
            Width::Eight => with_width_and_group!(@ 8, $group, $function $arguments),
        }
    };
    (@ $bits:literal, $group:expr, $function:ident $arguments:tt) => {
        match $group {
            16 => $function::<$bits, 16> $arguments,
            32 => $function::<$bits, 32> $arguments,
            64 => $function::<$bits, 64> $arguments,
            128 => $function::<$bits, 128> $arguments,
            _ => $function::<$bits, 256> $arguments,
        }
    };
}
pub(crate) use with_width_and_group;

/// The smallest and the largest of `values`, whose number is a multiple of [`LANES`].
#[inline(always)]
pub(crate) fn extremes(values: &[f32]) -> (f32, f32) {
    let (mut low, mut high) = ([f32::INFINITY; LANES], [f32::NEG_INFINITY; LANES]);
    for part in values.as_chunks::<LANES>().0 {
        for lane in 0..LANES {
            low[lane] = if part[lane] < low[lane] { part[lane] } else { low[lane] };
            high[lane] = if part[lane] > high[lane] { part[lane] } else { high[lane] };
        }
    }
    (
        folded(low, |one, other| if other < one { other } else { one }),
        folded(high, |one, other| if other > one { other } else { one }),
    )
}

/// Combines the halves of the partial results, then their halves.
#[inline(always)]
fn folded(mut lanes: [f32; LANES], combine: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] = combine(lanes[lane], lanes[lane + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// Sums of `N` terms for each index below `count`, a multiple of [`LANES`].
#[inline(always)]
pub(crate) fn sums<const N: usize>(count: usize, terms: impl Fn(usize) -> [f32; N]) -> [f32; N] {
    let mut partial = [[0.0f32; LANES]; N];
    for start in (0..count).step_by(LANES) {
        for lane in 0..LANES {
            let terms = terms(start + lane);
            for (sum, term) in partial.iter_mut().zip(terms) {
                sum[lane] += term;
            }
        }
    }
    partial.map(|lanes| folded(lanes, |one, other| one + other))
}

/// Floats of this size have no fraction.
pub(crate) const WHOLE: f32 = 12_582_912.0;

/// The nearest whole number, the even one of two, for magnitudes below 2^22.
#[inline(always)]
pub(crate) fn nearest(value: f32) -> f32 {
    // An instruction for it is not in every set.
    (value + WHOLE) - WHOLE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_is_the_even_one_of_two() {
        for value in [-2.5f32, -1.5, -0.5, -0.2, 0.0, 0.49, 0.5, 1.5, 2.5, 1e6 + 0.5] {
            assert_eq!(nearest(value), value.round_ties_even(), "{value}");
        }
    }

    #[test]
    fn reductions_see_every_element() {
        let values: Vec<f32> = (0..64).map(|number| ((number * 37) % 64) as f32 - 20.0).collect();
        assert_eq!(extremes(&values), (-20.0, 43.0));
        assert_eq!(sums(64, |at| [values[at], 1.0]), [64.0 * 11.5, 64.0]);
        assert_eq!(vectorized(|| extremes(&values)), (-20.0, 43.0));
    }
}
