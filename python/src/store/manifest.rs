//! The headers of published modules.

use super::tensor::Tensor;
use crate::errors::{OrRaise, raise};
use cotensor::{DType, Error};
use cotensor_formats::{ModuleManifest, ModuleTensor, Role};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};
use serde_json::value::RawValue;

/// Places (names and roles), dtype, shape, stride, storage, offset, requires_grad.
type TensorFields = (Vec<(String, String)>, String, Vec<u64>, Vec<u64>, u64, u64, bool);

/// Parses and checks the header of a published module. Returns the module's class, the storages (offset and length in
/// bytes), the tensors (places, dtype, shape, stride, storage, offset, requires_grad), the source as JSON, and the
/// offset of the first storage in bytes.
#[pyfunction]
#[allow(clippy::type_complexity, reason = "a tuple for Python")]
pub(crate) fn read_manifest<'py>(
    py: Python<'py>,
    whole: &Tensor,
) -> PyResult<(String, Vec<(u64, u64)>, Bound<'py, PyList>, String, usize)> {
    let held = whole.held(py)?;
    let lease = held.lease();
    let corrupt = |error: Error| raise(py, &error.in_field(lease.name()));
    if lease.dtype() != DType::U8 || lease.shape().len() != 1 || !whole.is_whole(&held) {
        let message = format!("this is a tensor {}{:?}, not a model", lease.dtype(), lease.shape());
        return Err(corrupt(Error::corrupt(message)));
    }
    let parsed = if lease.device().is_host() {
        ModuleManifest::parse(lease.host_bytes().or_raise(py)?)
    } else {
        let (segment, range) = (lease.segment(), lease.layout().byte_range());
        py.detach(|| ModuleManifest::parse_by(range.len(), |target| segment.read_at(range.start, target)))
    };
    let (manifest, data) = parsed.map_err(corrupt)?;
    let tensors = manifest.tensors.iter().map(|tensor| described(py, tensor)).collect::<PyResult<Vec<_>>>()?;
    let source = manifest.source.get().to_owned();
    Ok((manifest.module, manifest.storages, PyList::new(py, tensors)?, source, data))
}

fn described<'py>(py: Python<'py>, tensor: &ModuleTensor) -> PyResult<Bound<'py, PyTuple>> {
    let place = |(name, role): &(String, Role)| (PyString::new(py, name), PyString::intern(py, role.name()));
    let fields = (
        PyList::new(py, tensor.places.iter().map(place))?,
        PyString::intern(py, &tensor.dtype),
        PyTuple::new(py, &tensor.shape)?,
        PyTuple::new(py, &tensor.stride)?,
        tensor.storage,
        tensor.offset,
        tensor.requires_grad,
    );
    fields.into_pyobject(py)
}

/// Encodes the padded header of a module. The storages follow it.
#[pyfunction]
pub(crate) fn encode_manifest<'py>(
    py: Python<'py>,
    module: String,
    storages: Vec<(u64, u64)>,
    tensors: Vec<TensorFields>,
    source: String,
) -> PyResult<Bound<'py, PyBytes>> {
    let tensors = tensors.into_iter().map(|(places, dtype, shape, stride, storage, offset, requires_grad)| {
        let place = |(name, role): (String, String)| {
            let role = Role::ALL.into_iter().find(|known| known.name() == role);
            Ok((name, role.ok_or_else(|| Error::invalid("unknown role of a tensor").in_field("role"))?))
        };
        let places = places.into_iter().map(place).collect::<Result<_, Error>>()?;
        Ok(ModuleTensor { places, dtype, shape, stride, storage, offset, requires_grad })
    });
    let tensors = tensors.collect::<Result<Vec<_>, Error>>().or_raise(py)?;
    let source = RawValue::from_string(source).map_err(|error| Error::invalid(error.to_string()).in_field("source"));
    let manifest = ModuleManifest { module, storages, tensors, source: source.or_raise(py)? };
    Ok(PyBytes::new(py, &manifest.encode().or_raise(py)?))
}
