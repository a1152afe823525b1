//! The type of received tensors.

use crate::errors::raise;
use cotensor::Error;
use pyo3::prelude::*;

/// The Python type that received tensors get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TensorFormat {
    /// torch's if torch is imported, else numpy's if numpy is installed, else this package's.
    Auto,
    Torch,
    Numpy,
    Cotensor,
}

impl TensorFormat {
    /// # Errors
    /// `Invalid` for an unknown name.
    pub(crate) fn named(py: Python<'_>, name: &str) -> PyResult<Self> {
        match name {
            "auto" => Ok(TensorFormat::Auto),
            "torch" => Ok(TensorFormat::Torch),
            "numpy" => Ok(TensorFormat::Numpy),
            "cotensor" => Ok(TensorFormat::Cotensor),
            _ => {
                let message = format!("{name:?} is not one of auto, torch, numpy, cotensor");
                Err(raise(py, &Error::invalid(message).in_field("tensors")))
            }
        }
    }
}
