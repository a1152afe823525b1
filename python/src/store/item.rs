//! One element as a Python number.

use cotensor::{DType, Error};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::PyComplex;

/// The element of `dtype` in `bytes`, little-endian, as the Python number of the same value.
///
/// # Errors
/// `Unsupported` for an element type without a Python number.
pub(super) fn item(py: Python<'_>, dtype: DType, bytes: &[u8]) -> PyResult<Py<PyAny>> {
    // Not used for a complex number of 16 bytes.
    let word = bytes.iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
    match dtype {
        DType::Bool => (word != 0).into_py_any(py),
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => word.into_py_any(py),
        DType::I8 => (word as i8).into_py_any(py),
        DType::I16 => (word as i16).into_py_any(py),
        DType::I32 => (word as i32).into_py_any(py),
        DType::I64 => (word as i64).into_py_any(py),
        DType::F16 => small_float(word as u32, 5, 10).into_py_any(py),
        DType::F8E5M2 => small_float(word as u32, 5, 2).into_py_any(py),
        DType::F8E4M3FN => e4m3fn(word as u32).into_py_any(py),
        DType::BF16 => f64::from(f32::from_bits((word as u32) << 16)).into_py_any(py),
        DType::F32 => f64::from(f32::from_bits(word as u32)).into_py_any(py),
        DType::F64 => f64::from_bits(word).into_py_any(py),
        DType::C64 => complex(py, [f32::from_bits(word as u32).into(), f32::from_bits((word >> 32) as u32).into()]),
        DType::C128 => match bytes.as_chunks().0 {
            &[re, im] => complex(py, [re, im].map(f64::from_le_bytes)),
            _ => Err(crate::errors::raise(py, &Error::corrupt("not one complex number"))),
        },
        other => Err(crate::errors::raise(py, &Error::unsupported(format!("{other} has no Python number")))),
    }
}

fn complex(py: Python<'_>, [re, im]: [f64; 2]) -> PyResult<Py<PyAny>> {
    PyComplex::from_doubles(py, re, im).into_py_any(py)
}

/// A number of 4 bits of exponent and 3 of fraction without infinities: the largest exponent has numbers too.
fn e4m3fn(bits: u32) -> f64 {
    let (exponent, fraction) = (bits >> 3 & 0xf, bits & 7);
    let value = match (exponent, fraction) {
        (0xf, 7) => f64::NAN,
        (0xf, _) => (1.0 + f64::from(fraction) / 8.0) * 256.0,
        _ => return small_float(bits, 4, 3),
    };
    if bits & 0x80 != 0 { -value } else { value }
}

/// A binary floating-point number of IEEE 754's form with this many bits of exponent and fraction.
fn small_float(bits: u32, exponent_bits: u32, fraction_bits: u32) -> f64 {
    let fraction = f64::from(bits & ((1 << fraction_bits) - 1)) / f64::from(1u32 << fraction_bits);
    let exponent = bits >> fraction_bits & ((1 << exponent_bits) - 1);
    let bias = (1 << (exponent_bits - 1)) - 1;
    let value = match exponent {
        0 => fraction * 2f64.powi(1 - bias),
        exponent if exponent == (1 << exponent_bits) - 1 => {
            if fraction == 0.0 {
                f64::INFINITY
            } else {
                f64::NAN
            }
        }
        exponent => (1.0 + fraction) * 2f64.powi(exponent as i32 - bias),
    };
    if bits >> (exponent_bits + fraction_bits) & 1 == 1 { -value } else { value }
}
