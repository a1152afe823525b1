//! The options of a new tensor, common to `put` and `empty`.

use super::holder::program;
use crate::args::Kept;
use crate::errors::{OrRaise, raise};
use cotensor::{DType, Error, Kind};
use cotensor_core::ContentHash;
use cotensor_store::{Retention, TensorSpec};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use std::sync::Arc;
use std::time::Duration;

/// Keyword arguments that describe a tensor, apart from its dtype and shape.
pub(super) struct TensorOptions {
    pub(super) holder: Option<String>,
    pub(super) kind: Option<String>,
    pub(super) producer: Option<String>,
    pub(super) keep: Kept,
    pub(super) recompute_seconds: f64,
    pub(super) provenance: Option<String>,
    pub(super) metadata: Option<Py<PyAny>>,
}

/// The text of a dict with values of JSON.
///
/// # Errors
/// `Invalid` for other objects, values without a form in JSON, and NaN.
fn encoded(metadata: &Bound<'_, PyAny>) -> PyResult<Arc<str>> {
    let py = metadata.py();
    let invalid = |why: String| raise(py, &Error::invalid(why).in_field("metadata"));
    let Ok(metadata) = metadata.cast::<PyDict>() else {
        return Err(invalid(format!("pass a dict, not {}", metadata.get_type().name()?)));
    };
    if let Some(key) = metadata.keys().iter().find(|key| !key.is_instance_of::<PyString>()) {
        return Err(invalid(format!("{} is not a string: the keys of JSON are strings", key.repr()?)));
    }
    let options = PyDict::new(py);
    options.set_item("separators", (",", ":"))?;
    options.set_item("ensure_ascii", false)?;
    options.set_item("allow_nan", false)?;
    let text = py.import("json")?.call_method("dumps", (metadata,), Some(&options));
    let text: String = text.map_err(|error| invalid(format!("no JSON: {}", error.value(py))))?.extract()?;
    Ok(text.into())
}

impl TensorOptions {
    /// The specification of the tensor `name`.
    ///
    /// # Errors
    /// `Invalid` with the option's name.
    pub(super) fn spec(&self, py: Python<'_>, name: &str, dtype: DType, shape: &[usize]) -> PyResult<TensorSpec> {
        let kind: Kind = self.kind.as_deref().unwrap_or("other").parse::<Kind>().or_raise(py)?;
        let recompute = Duration::try_from_secs_f64(self.recompute_seconds)
            .map_err(|_| raise(py, &Error::invalid("pass a number of seconds").in_field("recompute_seconds")))?;
        let hash = |text| {
            let wrong = || Error::invalid("pass 64 hexadecimal digits").in_field("provenance");
            ContentHash::from_hex(text).ok_or_else(wrong)
        };
        let provenance = self.provenance.as_deref().map(hash).transpose().or_raise(py)?;
        Ok(TensorSpec {
            kind,
            producer: self.producer.clone().or_else(|| self.holder.clone()).unwrap_or_else(|| program(py)),
            retention: match self.keep {
                Kept::Always(false) => Retention::WhileLeased,
                Kept::Always(true) | Kept::For(_) => Retention::Cached { recompute },
            },
            keep_for: match self.keep {
                Kept::For(time) => Some(time),
                Kept::Always(_) => None,
            },
            provenance,
            metadata: self.metadata.as_ref().map(|metadata| encoded(metadata.bind(py))).transpose()?,
            ..TensorSpec::new(name, dtype, shape)
        })
    }
}
