//! The numbers of floating-point elements, which are little-endian.

use crate::DType;

/// Converts floating-point elements to `float32`.
///
/// # Panics
/// For an integer type.
pub fn to_f32(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let halves = || bytes.as_chunks::<2>().0.iter().map(|&bytes| u16::from_le_bytes(bytes));
    match dtype {
        DType::F16 => halves().map(f16_to_f32).collect(),
        DType::BF16 => halves().map(|half| f32::from_bits(u32::from(half) << 16)).collect(),
        DType::F32 => bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect(),
        DType::F64 => bytes.as_chunks().0.iter().map(|&bytes| f64::from_le_bytes(bytes) as f32).collect(),
        other => panic!("{other} is not a floating-point type"),
    }
}

/// The value of an IEEE 754 half, given by its bits.
pub fn f16_to_f32(half: u16) -> f32 {
    let sign = u32::from(half >> 15) << 31;
    let exponent = u32::from(half >> 10 & 0x1f);
    let fraction = u32::from(half & 0x3ff);
    match (exponent, fraction) {
        // Subnormal halves are multiples of 2^-24; so is zero.
        (0, _) => f32::from_bits(sign | (fraction as f32 * 2f32.powi(-24)).to_bits()),
        (0x1f, _) => f32::from_bits(sign | 0xff << 23 | fraction << 13),
        _ => f32::from_bits(sign | (exponent + 127 - 15) << 23 | fraction << 13),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_precision_values_are_exact() {
        for (half, value) in [
            (0x0000, 0.0),
            (0x8000, -0.0),
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x7bff, 65504.0),
            (0x0001, 2f32.powi(-24)),
            (0x03ff, 1023.0 * 2f32.powi(-24)),
            (0x0400, 2f32.powi(-14)),
            (0x3555, 0.333_251_95),
            (0x7c00, f32::INFINITY),
            (0xfc00, f32::NEG_INFINITY),
        ] {
            assert_eq!(f16_to_f32(half).to_bits(), value.to_bits(), "{half:#06x}");
        }
        assert!(f16_to_f32(0x7e00).is_nan());
    }
}
