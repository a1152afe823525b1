//! Keys of computations.

use super::lookup::lease_of;
use crate::import::source::SourceArray;
use cotensor_core::Hasher;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// The BLAKE3 hash, in 64 hexadecimal digits, of texts and arrays in order, with dtypes and shapes: a key for
/// :meth:`Store.claim`. Equal hashes mean equal values.
#[pyfunction]
#[pyo3(signature = (*parts))]
pub(crate) fn content_hash(py: Python<'_>, parts: &Bound<'_, PyTuple>) -> PyResult<String> {
    let mut hasher = Hasher::new("cotensor python key v1");
    for part in parts {
        if let Ok(text) = part.extract::<String>() {
            hasher.field(b"text").field(text.as_bytes());
            continue;
        }
        // The store hashes each version of a tensor once.
        let identity = match lease_of(py, &part)? {
            Some(held) => py.detach(|| held.lease().identity()),
            None => SourceArray::of(&part, &"part")?.identity(py)?,
        };
        hasher.field(b"array").field(identity.as_bytes());
    }
    Ok(hasher.finish().to_string())
}
