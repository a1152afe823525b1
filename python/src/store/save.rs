//! `save_file`: tensors in a file.

use super::tensor::Tensor;
use crate::errors::{OrRaise, raise};
use crate::held_lease::HeldLease;
use crate::store::store::Store;
use cotensor::Error;
use cotensor_formats::{Format, replace, write};
use pyo3::prelude::*;
use pyo3::types::PyMapping;
use std::path::PathBuf;
use std::sync::Arc;

/// Writes tensors to a file, which replaces an older one as a whole: a mapping of names to tensors or arrays as
/// ``.safetensors``, one tensor or array as ``.npy``. A group is saved as its members, named ``group.member``.
#[pyfunction]
pub(crate) fn save_file(py: Python<'_>, tensors: &Bound<'_, PyAny>, path: PathBuf) -> PyResult<()> {
    let format = Format::of(&path).or_raise(py)?;
    let mut named: Vec<(String, Arc<HeldLease>)> = Vec::new();
    match tensors.cast::<PyMapping>() {
        Ok(mapping) if !tensors.is_instance_of::<Tensor>() && !tensors.is_instance_of::<Store>() => {
            for item in mapping.items()? {
                let (name, array): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract()?;
                let wrong = |_| raise(py, &Error::invalid("pass a mapping of strings to tensors").in_field("tensors"));
                add(py, &name.extract::<String>().map_err(wrong)?, &array, &mut named)?;
            }
        }
        _ => add(py, "tensor", tensors, &mut named)?,
    }
    py.detach(|| {
        let tensors: Vec<_> = named.iter().map(|(name, held)| (name.as_str(), held.lease())).collect();
        replace(&path, |file| write(file, format, &tensors))
    })
    .or_raise(py)
}

/// Adds a tensor, the members of a group, or a copy of an array.
fn add(
    py: Python<'_>,
    name: &str,
    array: &Bound<'_, PyAny>,
    named: &mut Vec<(String, Arc<HeldLease>)>,
) -> PyResult<()> {
    let Ok(tensor) = array.cast::<Tensor>() else {
        let own = Store::in_process().put_kept(py, name, array)?;
        named.push((name.to_owned(), own.held(py)?));
        return Ok(());
    };
    let tensor = tensor.get();
    let Some(members) = tensor.group(py)? else {
        let held = tensor.held(py)?;
        // The bytes of a view lie among others.
        let whole = if tensor.is_whole(&held) { held } else { tensor.detach(py)?.held(py)? };
        named.push((name.to_owned(), whole));
        return Ok(());
    };
    for member in members.iter() {
        let part = tensor.member(py, member.name())?.detach(py)?;
        named.push((format!("{name}.{}", member.name()), part.held(py)?));
    }
    Ok(())
}
