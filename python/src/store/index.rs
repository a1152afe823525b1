//! Python indices as slices.

use crate::errors::raise;
use cotensor::{Error, Slice};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyEllipsis, PySlice, PyTuple};

/// The slice of each dimension that an index selects, and whether the index drops the dimension.
///
/// # Errors
/// `IndexError` out of bounds, `Unsupported` for a negative step, `Invalid` for other kinds of indices.
pub(super) fn slices(index: &Bound<'_, PyAny>, shape: &[usize]) -> PyResult<(Vec<Slice>, Vec<bool>)> {
    let py = index.py();
    let invalid = |message: String| raise(py, &Error::invalid(message).in_field("index"));
    let parts: Vec<Bound<'_, PyAny>> = match index.cast::<PyTuple>() {
        Ok(parts) => parts.iter().collect(),
        Err(_) => vec![index.clone()],
    };
    let is_ellipsis = |part: &Bound<'_, PyAny>| part.is_instance_of::<PyEllipsis>();
    let ellipses = parts.iter().filter(|part| is_ellipsis(part)).count();
    let given = parts.len() - ellipses;
    if ellipses > 1 || given > shape.len() {
        return Err(invalid(format!("{given} indices and {ellipses} ellipses for {} dimensions", shape.len())));
    }
    let (mut all, mut dropped) = (Vec::with_capacity(shape.len()), Vec::with_capacity(shape.len()));
    let whole = |dim: usize| Slice { start: 0, len: dim, step: 1 };
    for part in &parts {
        if is_ellipsis(part) {
            let rest = shape.len() - given;
            all.extend(shape[all.len()..all.len() + rest].iter().map(|&dim| whole(dim)));
            dropped.resize(all.len(), false);
            continue;
        }
        let dim = shape[all.len()];
        if let Ok(slice) = part.cast::<PySlice>() {
            let found = slice.indices(dim as isize)?;
            let step = usize::try_from(found.step)
                .map_err(|_| raise(py, &Error::unsupported("a view needs a positive step")))?;
            let start = usize::try_from(found.start).unwrap_or(0).min(dim);
            all.push(Slice { start, len: found.slicelength, step });
            dropped.push(false);
        } else if let Ok(at) = part.extract::<isize>()
            && !part.is_instance_of::<PyBool>()
        {
            let start = if at < 0 { at + dim as isize } else { at };
            let start = usize::try_from(start).ok().filter(|&start| start < dim);
            let out = || pyo3::exceptions::PyIndexError::new_err(format!("index {at} is outside a dimension of {dim}"));
            all.push(Slice { start: start.ok_or_else(out)?, len: 1, step: 1 });
            dropped.push(true);
        } else {
            return Err(invalid("a view takes integers, slices and ...; for other indices use t.numpy()[...]".into()));
        }
    }
    all.extend(shape[all.len()..].iter().map(|&dim| whole(dim)));
    dropped.resize(all.len(), false);
    Ok((all, dropped))
}
