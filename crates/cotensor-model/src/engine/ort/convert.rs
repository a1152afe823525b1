//! Between tensors and the values of onnxruntime, which computes with every element type of ONNX.

use crate::tensor::convert::{from_f32, from_i32, to_f32, to_i32};
use crate::tensor::{Array, TensorRef};
use cotensor_core::{DType, Error, ErrorKind, Result, size};
use ort::ErrorCode;
use ort::value::TensorElementType;

/// The element types that both sides have.
const TYPES: &[(DType, TensorElementType)] = &[
    (DType::Bool, TensorElementType::Bool),
    (DType::U8, TensorElementType::Uint8),
    (DType::I8, TensorElementType::Int8),
    (DType::U16, TensorElementType::Uint16),
    (DType::I16, TensorElementType::Int16),
    (DType::U32, TensorElementType::Uint32),
    (DType::I32, TensorElementType::Int32),
    (DType::U64, TensorElementType::Uint64),
    (DType::I64, TensorElementType::Int64),
    (DType::F16, TensorElementType::Float16),
    (DType::BF16, TensorElementType::Bfloat16),
    (DType::F32, TensorElementType::Float32),
    (DType::F64, TensorElementType::Float64),
];

/// onnxruntime's type for `dtype`.
///
/// # Errors
/// `Unsupported` for a type that ONNX does not have.
pub(super) fn element_type(dtype: DType) -> Result<TensorElementType> {
    let found = TYPES.iter().find(|(known, _)| *known == dtype);
    found.map(|(_, kind)| *kind).ok_or_else(|| Error::unsupported(format!("onnxruntime has no {dtype}")))
}

/// The type of onnxruntime's `kind`; `None` for strings and types of less than a byte.
pub(super) fn dtype(kind: TensorElementType) -> Option<DType> {
    TYPES.iter().find(|(_, known)| *known == kind).map(|(dtype, _)| *dtype)
}

/// A copy of `tensor` with elements of type `wanted`: a floating-point type from another one, an integer type from
/// another one.
///
/// # Errors
/// `Invalid` between floating-point numbers and integers, or for an integer that does not fit.
pub(super) fn converted(tensor: &TensorRef<'_>, bytes: &[u8], wanted: DType) -> Result<Array> {
    let refused = || Error::invalid(format!("{} given, the graph takes {wanted}", tensor.dtype()));
    let array = match tensor.dtype() {
        given @ (DType::F16 | DType::BF16 | DType::F32 | DType::F64) => {
            from_f32(tensor.shape(), to_f32(given, bytes), wanted)
        }
        DType::Bool
        | DType::U8
        | DType::I8
        | DType::U16
        | DType::I16
        | DType::U32
        | DType::I32
        | DType::U64
        | DType::I64 => from_i32(tensor.shape(), to_i32(tensor.dtype(), bytes)?, wanted),
        _ => None,
    };
    array.ok_or_else(refused)?
}

/// An array with a copy of `bytes`.
///
/// # Errors
/// `Invalid` for bytes that do not fill the shape.
pub(super) fn array(dtype: DType, shape: Vec<usize>, bytes: &[u8]) -> Result<Array> {
    match dtype.size_bytes() {
        1 => Array::new(dtype, shape, bytes.to_vec()),
        2 => Array::new::<u16>(dtype, shape, bytemuck::pod_collect_to_vec(bytes)),
        4 => Array::new::<u32>(dtype, shape, bytemuck::pod_collect_to_vec(bytes)),
        _ => Array::new::<u64>(dtype, shape, bytemuck::pod_collect_to_vec(bytes)),
    }
}

/// The error for a failure of onnxruntime.
pub(super) fn error(error: &ort::Error) -> Error {
    // Other failures have the same code.
    let unknown_operator =
        |message: &str| message.contains("is not a registered function/op") || message.contains("No Op registered for");
    if let Some(message) = without_memory(error.message()) {
        return Error::new(ErrorKind::OverBudget, message);
    }
    let kind = match error.code() {
        ErrorCode::NotImplemented => ErrorKind::Unsupported,
        _ if unknown_operator(error.message()) => ErrorKind::Unsupported,
        ErrorCode::InvalidArgument => ErrorKind::Invalid,
        ErrorCode::NoSuchFile => ErrorKind::NotFound,
        ErrorCode::InvalidProtobuf | ErrorCode::InvalidGraph | ErrorCode::NoModel => ErrorKind::Corrupt,
        _ => ErrorKind::Engine,
    };
    Error::new(kind, error.message().trim_end())
}

/// The message for a failed allocation, with its bytes; `None` for another failure. They have no code of their own.
fn without_memory(message: &str) -> Option<String> {
    const FAILURES: &[&str] =
        &["Failed to allocate memory", "smaller than requested bytes", "bad_alloc", "bad allocation"];
    FAILURES.iter().any(|failure| message.contains(failure)).then_some(())?;
    let after = |words: &str| message.split_once(words).map(|(_, rest)| rest.trim_start());
    let number = after("buffer of size").or_else(|| after("requested bytes of"));
    let digits = number.map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default());
    let bytes = digits.and_then(|digits| digits.parse().ok());
    Some(format!("onnxruntime got no memory{}", bytes.map_or(String::new(), |bytes| format!(" for {}", size(bytes)))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_allocation_is_named_with_its_bytes() {
        let arena = "Non-zero status code returned while running MatMul node. Name:'/attention' Status Message: \
                     /onnxruntime/core/framework/bfc_arena.cc:376 void* onnxruntime::BFCArena::AllocateRawInternal(size_t, bool) \
                     Failed to allocate memory for requested buffer of size 1073741824";
        assert_eq!(without_memory(arena).unwrap(), "onnxruntime got no memory for 1.00 GiB");
        let limit = "Available memory of 5 is smaller than requested bytes of 2048";
        assert_eq!(without_memory(limit).unwrap(), "onnxruntime got no memory for 2.00 KiB");
        assert_eq!(without_memory("Exception: std::bad_alloc").unwrap(), "onnxruntime got no memory");
        assert_eq!(without_memory("Non-zero status code returned while running Gather node"), None);
    }

    #[test]
    fn types_map_both_ways() {
        for &(known, kind) in TYPES {
            assert_eq!((element_type(known).unwrap(), dtype(kind)), (kind, Some(known)));
            assert_eq!(kind.byte_size(3), Some(3 * known.size_bytes()));
        }
        assert_eq!(dtype(TensorElementType::String), None);
    }

    #[test]
    fn narrow_numbers_widen_and_floats_never_become_integers() {
        let ids = Array::i32([2], vec![7, -1]).unwrap();
        let wide = converted(&TensorRef::from(&ids), ids.bytes(), DType::I64).unwrap();
        assert_eq!(wide.as_i64().unwrap(), [7, -1]);
        let floats = Array::f32([1], vec![1.0]).unwrap();
        let half = converted(&TensorRef::from(&floats), floats.bytes(), DType::F16).unwrap();
        assert_eq!(half.typed::<u16>().unwrap(), [0x3c00]);
        for (array, wanted) in [(&ids, DType::F32), (&floats, DType::I64)] {
            let error = converted(&TensorRef::from(array), array.bytes(), wanted).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
        }
    }
}
