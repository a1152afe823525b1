//! Why an array cannot be shared, when its library refuses DLPack.

use crate::errors::raise;
use cotensor::Error;
use pyo3::prelude::*;
use std::fmt::Display;

/// The exception for an array whose library raised `error` from `__dlpack__`. A known reason comes with a way out.
pub(super) fn refusal(array: &Bound<'_, PyAny>, place: &dyn Display, error: PyErr) -> PyErr {
    let py = array.py();
    let name = array.get_type().fully_qualified_name().map_or_else(|_| "array".to_owned(), |name| name.to_string());
    let why = known_reason(array).unwrap_or_else(|| error.value(py).to_string());
    let refusal =
        raise(py, &Error::unsupported(format!("this {name} cannot be shared: {why}")).in_field(place.to_string()));
    refusal.set_cause(py, Some(error));
    refusal
}

/// The reasons for torch tensors.
fn known_reason(array: &Bound<'_, PyAny>) -> Option<String> {
    let attribute = |name: &str| array.getattr(name).ok();
    let is = |name: &str| attribute(name).is_some_and(|value| value.is_truthy().unwrap_or(false));
    if is("is_nested") {
        return Some("a nested tensor has no single shape; use to_padded_tensor(0)".to_owned());
    }
    if is("is_meta") {
        return Some("a meta tensor has no memory".to_owned());
    }
    if is("is_quantized") {
        return Some(
            "a quantized tensor is more than its elements; share int_repr() and its scales, or dequantize()".into(),
        );
    }
    let layout = attribute("layout")?.str().ok()?.to_string();
    (layout != "torch.strided").then(|| format!("its layout is {layout}; use to_dense()"))
}
