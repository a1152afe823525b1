//! Conversions between element types. All elements are little-endian.

pub(crate) use cotensor_core::elements::to_f32;
use cotensor_core::elements::{bf16, f16};
use cotensor_core::{DType, Error, Result};
use cotensor_preprocess::Array;

/// Converts integer or Boolean elements to `int32`.
///
/// # Errors
/// `Invalid` for a number that does not fit 32 bits.
///
/// # Panics
/// For a floating-point type.
pub(crate) fn to_i32(dtype: DType, bytes: &[u8]) -> Result<Vec<i32>> {
    fn checked<const N: usize, T: TryInto<i32>>(bytes: &[u8], read: fn([u8; N]) -> T) -> Result<Vec<i32>> {
        let convert = |(index, &bytes): (usize, &[u8; N])| {
            let fits = read(bytes).try_into();
            fits.map_err(|_| {
                Error::invalid(format!("element {index} does not fit int32, in which the engine computes"))
            })
        };
        bytes.as_chunks::<N>().0.iter().enumerate().map(convert).collect()
    }
    match dtype {
        DType::Bool => Ok(bytes.iter().map(|&byte| i32::from(byte != 0)).collect()),
        DType::U8 => checked(bytes, u8::from_le_bytes),
        DType::I8 => checked(bytes, i8::from_le_bytes),
        DType::U16 => checked(bytes, u16::from_le_bytes),
        DType::I16 => checked(bytes, i16::from_le_bytes),
        DType::U32 => checked(bytes, u32::from_le_bytes),
        DType::I32 => checked(bytes, i32::from_le_bytes),
        DType::U64 => checked(bytes, u64::from_le_bytes),
        DType::I64 => checked(bytes, i64::from_le_bytes),
        other => panic!("{other} is not an integer type"),
    }
}

/// An array of `dtype` with the numbers of a `float32` array; `None` when `dtype` is not a floating-point type.
pub(crate) fn from_f32(shape: &[usize], values: Vec<f32>, dtype: DType) -> Option<Result<Array>> {
    Some(match dtype {
        DType::F32 => Array::f32(shape, values),
        DType::F16 => {
            Array::new(dtype, shape, values.into_iter().map(|value| f16::from_f32(value).to_bits()).collect())
        }
        DType::BF16 => {
            Array::new(dtype, shape, values.into_iter().map(|value| bf16::from_f32(value).to_bits()).collect())
        }
        DType::F64 => Array::new(dtype, shape, values.into_iter().map(f64::from).collect()),
        _ => return None,
    })
}

/// An array of `dtype` with the numbers of an `int32` array, which wrap around in a narrower type; `None` when `dtype`
/// is not an integer type.
pub(crate) fn from_i32(shape: &[usize], values: Vec<i32>, dtype: DType) -> Option<Result<Array>> {
    fn array<T>(dtype: DType, shape: &[usize], values: Vec<i32>, convert: fn(i32) -> T) -> Result<Array>
    where
        T: bytemuck::Pod + Send + Sync,
    {
        Array::new(dtype, shape, values.into_iter().map(convert).collect())
    }
    Some(match dtype {
        DType::I32 => Array::i32(shape, values),
        DType::Bool => array(dtype, shape, values, |value| u8::from(value != 0)),
        DType::U8 => array(dtype, shape, values, |value| value as u8),
        DType::I8 => array(dtype, shape, values, |value| value as i8),
        DType::U16 => array(dtype, shape, values, |value| value as u16),
        DType::I16 => array(dtype, shape, values, |value| value as i16),
        DType::U32 => array(dtype, shape, values, |value| value as u32),
        DType::U64 => array(dtype, shape, values, |value| value as u64),
        DType::I64 => array(dtype, shape, values, i64::from),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_survives_a_round_trip_and_rounding_is_to_nearest_even() {
        let rounded = |values: Vec<f32>| {
            let array = from_f32(&[values.len()], values, DType::F16).unwrap().unwrap();
            array.bytes().as_chunks::<2>().0.iter().map(|&bytes| u16::from_le_bytes(bytes)).collect::<Vec<_>>()
        };
        let all: Vec<u16> = (0..=u16::MAX).collect();
        let bytes: Vec<u8> = all.iter().flat_map(|half| half.to_le_bytes()).collect();
        let values = to_f32(DType::F16, &bytes);
        for ((half, value), back) in all.iter().zip(&values).zip(rounded(values.clone())) {
            let is_nan = || value.is_nan() && to_f32(DType::F16, &back.to_le_bytes())[0].is_nan();
            assert!(is_nan() || back == *half, "{half:#06x}");
        }
        let step = 2f32.powi(-10);
        for (value, half) in [
            (1.0 + step / 2.0, 0x3c00),
            (1.0 + step * 1.5, 0x3c02),
            (1.0 + step * 0.51, 0x3c01),
            (65519.0, 0x7bff),
            (65520.0, 0x7c00),
            (f32::MAX, 0x7c00),
            (2f32.powi(-25), 0),
            (2f32.powi(-25) * 1.01, 1),
        ] {
            assert_eq!(rounded(vec![value, -value]), [half, half | 0x8000], "{value}");
        }
    }

    #[test]
    fn integers_convert_both_ways_and_large_ones_are_refused() {
        let wide: Vec<u8> = [-1i64, 7, i64::from(i32::MAX)].iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(to_i32(DType::I64, &wide).unwrap(), [-1, 7, i32::MAX]);
        let error = to_i32(DType::I64, &(1i64 << 31).to_le_bytes()).unwrap_err();
        assert!(error.message().contains("element 0"), "{error}");
        assert_eq!(to_i32(DType::Bool, &[0, 1, 255]).unwrap(), [0, 1, 1]);
        let back = |dtype| from_i32(&[2], vec![0, 300], dtype).unwrap().unwrap();
        assert_eq!(back(DType::I64).as_i64().unwrap(), [0, 300]);
        assert_eq!(back(DType::Bool).bytes(), [0, 1]);
        assert!(from_i32(&[2], vec![0, 300], DType::F32).is_none());
    }
}
