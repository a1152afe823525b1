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
