//! A value to publish: an array on the host or on a CUDA device.

use super::cuda_array::CudaArray;
use super::source::SourceArray;
use crate::errors::{OrRaise, raise};
use crate::imports::{Numpy, Torch};
use cotensor::{DType, Error};
use cotensor_client::ClientStore;
use cotensor_core::Device;
use cotensor_store::{Holder, Lease, Reservation, TensorSpec};
use pyo3::intern;
use pyo3::prelude::*;
use std::fmt::Display;

pub(crate) enum Value {
    Host(SourceArray),
    Cuda(CudaArray),
}

impl Value {
    /// Describes an array. With `to_host`, an array in device memory is on its way to the host.
    ///
    /// # Errors
    /// As [`SourceArray::of`] and [`CudaArray::of`].
    pub(crate) fn of(array: &Bound<'_, PyAny>, to_host: bool, place: &dyn Display) -> PyResult<Self> {
        let py = array.py();
        let found = if to_host {
            // Other libraries copy their arrays themselves, from whichever kind of device. Tensors of this package do not.
            if array.hasattr(intern!(py, "cpu"))? { None } else { found_or_copied(array, place)? }
        } else if is_on_host(array)? {
            None
        } else {
            CudaArray::of(array, place)?
        };
        if let Some(found) = found {
            return Ok(Self::Cuda(found));
        }
        SourceArray::of_any_device(array, to_host, place).map(Self::Host)
    }

    /// The device to publish it on, for the argument `device` and `from_device` of `put`. `cuda` without a number is the one of the rank.
    ///
    /// # Errors
    /// `Invalid` for another device than the host with `from_device`, and for variables that are no rank.
    pub(crate) fn target(py: Python<'_>, device: Option<&str>, from_device: bool) -> PyResult<Option<Device>> {
        let device = device.map(|device| match device {
            "cuda" => cotensor_client::device_of_rank(),
            device => device.parse::<Device>().map_err(|error| error.in_field("device")),
        });
        let device = device.transpose().map_err(|error| raise(py, &error))?;
        match device {
            Some(device) if from_device && !device.is_host() => {
                let message = format!("from_device copies to the host, and not to {device}");
                Err(raise(py, &Error::invalid(message).in_field("from_device")))
            }
            None if from_device => Ok(Some(Device::Cpu)),
            device => Ok(device),
        }
    }

    /// The device that has it.
    pub(crate) fn device(&self) -> Device {
        match self {
            Self::Host(_) => Device::Cpu,
            Self::Cuda(array) => array.device(),
        }
    }

    pub(crate) fn dtype(&self) -> DType {
        match self {
            Self::Host(array) => array.dtype,
            Self::Cuda(array) => array.dtype,
        }
    }

    /// In elements.
    pub(crate) fn shape(&self) -> &[usize] {
        match self {
            Self::Host(array) => &array.shape,
            Self::Cuda(array) => &array.shape,
        }
    }

    pub(crate) fn len_bytes(&self) -> usize {
        match self {
            Self::Host(array) => array.len_bytes(),
            Self::Cuda(array) => array.len_bytes(),
        }
    }

    /// # Errors
    /// As [`SourceArray::fits`].
    pub(crate) fn fits(&self, name: &str, dtype: DType, shape: &[usize]) -> Result<(), Error> {
        match self {
            Self::Host(array) => array.fits(name, dtype, shape),
            Self::Cuda(array) => array.fits(name, dtype, shape),
        }
    }

    /// Publishes an array of a device where it is, as [`CudaArray::publish_in_place`] does. None for other arrays, and for another device.
    pub(crate) fn publish_in_place(
        &self,
        py: Python<'_>,
        store: Option<&ClientStore>,
        spec: &TensorSpec,
        holder: &Holder,
    ) -> PyResult<Option<Lease>> {
        match (self, store) {
            (Self::Cuda(array), Some(store)) if spec.device == array.device() => {
                py.detach(|| array.publish_in_place(store, spec.clone(), holder)).transpose().or_raise(py)
            }
            _ => Ok(None),
        }
    }

    /// Copies the elements into a new reservation of the same dtype and shape, detached from Python. The copy is counted.
    pub(crate) fn fill(&self, py: Python<'_>, reservation: &mut Reservation) -> PyResult<()> {
        match self {
            Self::Cuda(array) => array.fill(py, reservation),
            Self::Host(array) if reservation.device().is_host() => array.fill(py, reservation),
            Self::Host(array) => array.fill_device(py, reservation),
        }
    }

    /// As [`fill`](Self::fill), for memory that the array may show.
    pub(crate) fn fill_again(&self, py: Python<'_>, reservation: &mut Reservation) -> PyResult<()> {
        match self {
            Self::Host(array) if reservation.device().is_host() => array.fill_again(py, reservation),
            _ => self.fill(py, reservation),
        }
    }
}

/// An array on a CUDA device. None for one that this process cannot share, and numpy may copy.
fn found_or_copied(array: &Bound<'_, PyAny>, place: &dyn Display) -> PyResult<Option<CudaArray>> {
    let py = array.py();
    match CudaArray::of(array, place) {
        Err(error) if is_unsupported(py, &error)? && array.hasattr(intern!(py, "__dlpack_device__"))? => Ok(None),
        found => found,
    }
}

fn is_unsupported(py: Python<'_>, error: &PyErr) -> PyResult<bool> {
    Ok(error.is_instance(py, &py.import("cotensor.errors")?.getattr("UnsupportedError")?))
}

/// Whether it is an array of the host by its class alone, as most are.
fn is_on_host(array: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = array.py();
    if let Some(numpy) = Numpy::imported(py)?
        && array.is_instance(numpy.ndarray.bind(py))?
    {
        return Ok(true);
    }
    match Torch::imported(py)?.filter(|torch| torch.is_plain(array)) {
        Some(_) => array.getattr(intern!(py, "is_cpu"))?.is_truthy(),
        None => Ok(false),
    }
}
