//! The options of a new tensor, common to `put` and `empty`.

use super::holder::program;
use crate::errors::{OrRaise, raise};
use cotensor::{DType, Error, Kind};
use cotensor_core::ContentHash;
use cotensor_store::{Retention, TensorSpec};
use pyo3::prelude::*;
use std::time::Duration;

/// Keyword arguments that describe a tensor, apart from its dtype and shape.
pub(super) struct TensorOptions {
    pub(super) holder: Option<String>,
    pub(super) kind: Option<String>,
    pub(super) producer: Option<String>,
    pub(super) keep: bool,
    pub(super) recompute_seconds: f64,
    pub(super) provenance: Option<String>,
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
            retention: if self.keep { Retention::Cached { recompute } } else { Retention::WhileLeased },
            provenance,
            ..TensorSpec::new(name, dtype, shape)
        })
    }
}
