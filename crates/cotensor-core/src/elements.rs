//! The numbers of floating-point elements, which are little-endian.

use crate::DType;

pub use half::{bf16, f16};

/// Converts floating-point elements to `float32`.
///
/// # Panics
/// For an integer type.
pub fn to_f32(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let halves = || bytes.as_chunks::<2>().0.iter().copied();
    match dtype {
        DType::F16 => halves().map(|bytes| f16::from_le_bytes(bytes).to_f32()).collect(),
        DType::BF16 => halves().map(|bytes| bf16::from_le_bytes(bytes).to_f32()).collect(),
        DType::F32 => bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect(),
        DType::F64 => bytes.as_chunks().0.iter().map(|&bytes| f64::from_le_bytes(bytes) as f32).collect(),
        other => panic!("{other} is not a floating-point type"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_precision_values_are_exact() {
        for (half, value) in [
            (0x0000u16, 0.0),
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
            assert_eq!(to_f32(DType::F16, &half.to_le_bytes())[0].to_bits(), value.to_bits(), "{half:#06x}");
        }
        assert!(to_f32(DType::F16, &0x7e00u16.to_le_bytes())[0].is_nan());
    }
}
