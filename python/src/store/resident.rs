//! Copies of published weights on a device, for `cotensor.tensorref`.

use super::tensor::Tensor;
use crate::errors::{OrRaise, raise};
use crate::export::buffer::{Buffer, KeepAlive};
use crate::export::device::cuda_memory_of;
use crate::export::private_pages::PrivatePages;
use crate::export::tensor_mapping;
use crate::held_lease::HeldLease;
use crate::interrupt::seconds;
use crate::process::ProcessLocal;
use crate::release::after_releases;
use cotensor::{Error, Store};
use cotensor_core::{Device, Memory};
use cotensor_memory::SimulatedMemory;
use cotensor_sharing::ResidentCopy;
use pyo3::prelude::*;
use std::sync::Arc;

/// The copies of published weights in the memory of one device, which the programs of a store share.
///
/// ``tensor`` is a tensor of the store. ``kind`` and ``ordinal`` are the device's in PyTorch, and ``identity`` is its name in all
/// programs: copies of :meth:`Store.get` have the same on a CUDA device, whose UUID it is there.
#[pyclass(frozen, module = "cotensor")]
pub(crate) struct ResidentCopies {
    store: ProcessLocal<Arc<dyn Store>>,
    device: Device,
    identity: String,
}

/// The store's name of a device of PyTorch, and the name that is equal in all programs if the driver has one.
///
/// # Errors
/// `Unsupported` for a device whose memory stores do not have.
fn device_of(kind: &str, ordinal: u32) -> Result<(Device, Option<String>), Error> {
    if kind == "cuda" {
        let memory = cuda_memory_of(ordinal.into())?;
        return Ok((memory.device(), Some(memory.uuid().to_owned())));
    }
    let mut devices = SimulatedMemory::all().map(|memory| memory.device());
    let found = devices.find(|device| kind == "simulated" && *device == Device::Fake(ordinal));
    let missing = || Error::unsupported(format!("stores have no memory on {kind}:{ordinal}"));
    found.map(|device| (device, None)).ok_or_else(missing)
}

#[pymethods]
impl ResidentCopies {
    #[new]
    fn new(py: Python<'_>, tensor: &Tensor, kind: &str, ordinal: u32, identity: String) -> PyResult<Self> {
        let held = tensor.held(py)?;
        let forked = || raise(py, &Error::unsupported("a forked process cannot use devices of a store"));
        let store = ProcessLocal::new(Arc::clone(held.store().ok_or_else(forked)?));
        let (device, uuid) = py.detach(|| device_of(kind, ordinal)).or_raise(py)?;
        Ok(Self { store, device, identity: uuid.unwrap_or(identity) })
    }

    /// The store's name of the device.
    #[getter]
    fn device(&self) -> String {
        self.device.to_string()
    }

    /// Bytes of the device that tensors of the store take, and that they may take. ``None`` if the store has no memory there.
    fn budget(&self, py: Python<'_>) -> PyResult<Option<(u64, u64)>> {
        let store = self.store.get(py, "store")?;
        let (stats, name) = (py.detach(|| store.stats()), self.device.to_string());
        let found = stats.devices.into_iter().find(|stats| stats.device == name);
        Ok(found.map(|stats| (stats.memory_usage_bytes, stats.max_memory_bytes.unwrap_or(u64::MAX))))
    }

    /// The copy of ``nbytes`` published bytes at ``address``, as a flat tensor of torch, which holds a lease of it, and the number of
    /// bytes that were copied for the call. With ``may_copy``, the copy is made if no program has made it; the call then waits at most
    /// ``wait`` seconds for a program that is making it. ``None`` without a copy, for other memory, and after a write to one of
    /// these pages.
    ///
    /// The tensor of a simulated device is one of the host; a write to it stays private to this process.
    fn lease<'py>(
        &self,
        py: Python<'py>,
        address: usize,
        nbytes: usize,
        wait: f64,
        may_copy: bool,
    ) -> PyResult<Option<(Bound<'py, PyAny>, usize)>> {
        let wait = seconds(py, Some(wait))?.unwrap_or_default();
        let lease = || -> Result<_, Error> {
            let Some((held, offset)) = tensor_mapping::published_at(address, nbytes) else { return Ok(None) };
            let Some(store) = held.store() else { return Ok(None) };
            let source = held.lease();
            let (device, identity) = (self.device, self.identity.as_str());
            let copy = ResidentCopy { source, bytes: offset..offset + nbytes, device, identity };
            let holder = store.holder(&source.holder());
            let found = if may_copy {
                let made = after_releases(copy.spec(&holder), |_| copy.lease(&**store, &holder, wait))?;
                Some((made.lease, made.copied_bytes))
            } else {
                copy.find(&**store, &holder)?.map(|lease| (lease, 0))
            };
            Ok(found.map(|(lease, copied)| (lease, copied, Arc::clone(store))))
        };
        let Some((lease, copied_bytes, store)) = py.detach(lease).or_raise(py)? else { return Ok(None) };
        let shown = match self.device {
            Device::Fake(_) => simulated(py, HeldLease::new(lease, store))?,
            _ => Tensor::new(lease, store).torch(py)?,
        };
        Ok(Some((shown, copied_bytes)))
    }
}

/// A tensor of torch that shows memory of a simulated device.
fn simulated(py: Python<'_>, held: Arc<HeldLease>) -> PyResult<Bound<'_, PyAny>> {
    let layout = held.lease().layout().clone();
    let pages = PrivatePages::new(held);
    let mapping = pages.dlpack().or_raise(py)?;
    Buffer::read_only(mapping.address(), layout, Arc::clone(mapping) as KeepAlive).torch(py)
}
