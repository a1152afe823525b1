//! Groups: several arrays under one name.

use super::holder::holder as holder_of;
use super::options::TensorOptions;
use super::tensor::Tensor;
use crate::errors::{OrRaise, raise};
use crate::import::source::SourceArray;
use cotensor::{DType, Error, Store};
use cotensor_store::{Members, TensorSpec};
use pyo3::prelude::*;
use pyo3::types::PyMapping;
use std::sync::Arc;

/// Publishes the arrays of a mapping as the members of one tensor, with one counted copy of each.
///
/// # Errors
/// `Invalid` for another object than a mapping of strings to arrays, and as [`Members::new`].
pub(super) fn put_group(
    py: Python<'_>,
    store: Arc<dyn Store>,
    name: &str,
    arrays: &Bound<'_, PyAny>,
    options: &TensorOptions,
    from_device: bool,
) -> PyResult<Tensor> {
    let wrong = || raise(py, &Error::invalid("pass a mapping of strings to arrays").in_field("arrays"));
    let items = arrays.cast::<PyMapping>().map_err(|_| wrong())?.items()?;
    let mut sources = Vec::with_capacity(items.len());
    for item in items {
        let (member, array): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract()?;
        let member: String = member.extract().map_err(|_| wrong())?;
        let source = SourceArray::of_any_device(&array, from_device, &member)?;
        sources.push((member, source));
    }
    let members = Members::new(sources.iter().map(|(member, source)| (member.as_str(), source.dtype, &source.shape)));
    let spec = spec(py, name, members.or_raise(py)?, options)?;
    let holder = holder_of(py, &store, options.holder.as_deref());
    let mut reservation = py.detach(|| store.reserve(spec, &holder)).or_raise(py)?;
    for (member, source) in &sources {
        source.fill_member(py, &mut reservation, member)?;
    }
    drop(sources);
    let lease = py.detach(|| reservation.publish()).or_raise(py)?;
    Ok(Tensor::new(lease, store))
}

/// The spec of a group, from the name, dtype and shape of each member.
///
/// # Errors
/// `Invalid` with the member, as [`Members::new`].
pub(super) fn group_spec(
    py: Python<'_>,
    name: &str,
    members: &[(String, String, Vec<usize>)],
    options: &TensorOptions,
) -> PyResult<TensorSpec> {
    let laid = || {
        let parsed = members.iter().map(|(member, dtype, shape)| {
            let dtype: DType = dtype.parse().map_err(|error: Error| error.in_field(member.as_str()))?;
            Ok((member.as_str(), dtype, shape))
        });
        Members::new(parsed.collect::<Result<Vec<_>, Error>>()?)
    };
    spec(py, name, laid().or_raise(py)?, options)
}

fn spec(py: Python<'_>, name: &str, members: Arc<Members>, options: &TensorOptions) -> PyResult<TensorSpec> {
    let plain = options.spec(py, name, DType::U8, &[members.size_bytes()])?;
    Ok(TensorSpec { members: Some(members), ..plain })
}
