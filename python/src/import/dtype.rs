//! Element types and shapes as Python programs write them.

use crate::errors::{OrRaise, raise};
use cotensor::{DType, Error};
use pyo3::prelude::*;
use pyo3::types::PyString;

/// The element type of a numpy dtype, ml_dtypes' bfloat16 included.
pub(super) fn numpy_dtype(described: &Bound<'_, PyAny>) -> PyResult<Result<DType, Error>> {
    let name: String = described.getattr("name")?.extract()?;
    let order: String = described.getattr("byteorder")?.extract()?;
    if order == ">" {
        let message = format!("dtype {} is big-endian: convert it with .astype({name:?})", described.str()?);
        return Ok(Err(Error::unsupported(message)));
    }
    Ok(name.parse::<DType>().map_err(|_| {
        let hint = if name == "object" { "; objects are not numbers" } else { "" };
        Error::unsupported(format!("dtype {name} cannot be shared{hint}"))
    }))
}

/// The element type of a type string of array interfaces, such as `<f4`.
///
/// # Errors
/// `Unsupported` for types that no tensor has.
pub(super) fn type_string_dtype(kind: &str) -> Result<DType, Error> {
    Ok(match kind.strip_prefix(['<', '|', '=']) {
        Some("b1") => DType::Bool,
        Some("u1") => DType::U8,
        Some("i1") => DType::I8,
        Some("u2") => DType::U16,
        Some("i2") => DType::I16,
        Some("f2") => DType::F16,
        Some("u4") => DType::U32,
        Some("i4") => DType::I32,
        Some("f4") => DType::F32,
        Some("u8") => DType::U64,
        Some("i8") => DType::I64,
        Some("f8") => DType::F64,
        Some("c8") => DType::C64,
        Some("c16") => DType::C128,
        _ => return Err(Error::unsupported(format!("elements of the type {kind:?} cannot be shared"))),
    })
}

/// The element type of an argument: a name, numpy's or torch's dtype, or a scalar type.
pub(crate) fn dtype(described: &Bound<'_, PyAny>) -> PyResult<DType> {
    let py = described.py();
    let name: String = if let Ok(name) = described.cast::<PyString>() {
        name.extract()?
    } else if let Some(name) = described.getattr_opt("name")? {
        name.extract()?
    } else if let Some(name) = described.getattr_opt("__name__")? {
        name.extract()?
    } else {
        described.str()?.to_string()
    };
    let name = match name.strip_prefix("torch.").unwrap_or(&name) {
        "float" => "float64",
        "int" => "int64",
        name => name,
    };
    name.parse::<DType>().map_err(|error| error.in_field("dtype")).or_raise(py)
}

/// The shape of an argument in elements: one number, or a sequence of numbers.
pub(crate) fn shape(given: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
    match given.extract::<usize>() {
        Ok(dim) => Ok(vec![dim]),
        Err(_) => given.extract().map_err(|_| {
            let shown = given.repr().map_or_else(|_| "?".to_owned(), |text| text.to_string());
            let message = format!("{shown} is not a shape: pass non-negative integers");
            raise(given.py(), &Error::invalid(message).in_field("shape"))
        }),
    }
}
