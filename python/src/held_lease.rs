//! A lease that Python objects hold.

use crate::process::ProcessLocal;
use crate::release::release_later;
use cotensor::{Error, Lease, Store};
use cotensor_core::Device;
use cotensor_memory::CudaMemory;
use std::any::Any;
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// A lease and its store. Every Python object that shows the tensor holds one.
pub(crate) struct HeldLease {
    lease: ManuallyDrop<ProcessLocal<Lease>>,
    store: ManuallyDrop<ProcessLocal<Arc<dyn Store>>>,
    /// Another owner with the same lifetime.
    _keep: Option<Arc<dyn Any + Send + Sync>>,
    /// The device whose programs use the memory, if it is another one than that of the memory.
    peer: Option<Device>,
}

impl HeldLease {
    pub(crate) fn new(lease: Lease, store: Arc<dyn Store>) -> Arc<Self> {
        Self::keeping(lease, store, None)
    }

    /// A lease that holds another owner, too.
    pub(crate) fn keeping(lease: Lease, store: Arc<dyn Store>, keep: Option<Arc<dyn Any + Send + Sync>>) -> Arc<Self> {
        Arc::new(Self::build(lease, store, keep, None))
    }

    /// A lease for programs of another device, which can read the memory.
    pub(crate) fn for_peer(lease: Lease, store: Arc<dyn Store>, peer: Device) -> Arc<Self> {
        Arc::new(Self::build(lease, store, None, Some(peer)))
    }

    fn build(
        lease: Lease,
        store: Arc<dyn Store>,
        keep: Option<Arc<dyn Any + Send + Sync>>,
        peer: Option<Device>,
    ) -> Self {
        let (lease, store) = (ProcessLocal::new(lease), ProcessLocal::new(store));
        Self { lease: ManuallyDrop::new(lease), store: ManuallyDrop::new(store), _keep: keep, peer }
    }

    /// The device whose programs use the memory.
    pub(crate) fn device(&self) -> Device {
        self.peer.unwrap_or_else(|| self.lease.device())
    }

    /// The address of the segment for programs of that device, whose memory is `memory`.
    ///
    /// # Errors
    /// `Unsupported` for memory that the device cannot read; those of the driver.
    pub(crate) fn device_address(&self, memory: &CudaMemory) -> Result<u64, Error> {
        let segment = self.lease.segment();
        let Some(peer) = self.peer else { return segment.device_address() };
        let refused = || Error::unsupported(format!("{peer} cannot read memory of {}", segment.device()));
        memory.peer_address(segment)?.ok_or_else(refused)
    }

    pub(crate) fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The store; `None` in a forked child.
    pub(crate) fn store(&self) -> Option<&Arc<dyn Store>> {
        self.store.is_ours().then_some(&**self.store)
    }
}

impl Drop for HeldLease {
    fn drop(&mut self) {
        // Memory without users ends at once, so that `release` is one.
        let waits = self.lease.is_ours() && CudaMemory::is_lent(self.lease.segment());
        // SAFETY: both are taken once: dropped only here, and not used afterwards.
        let held = unsafe { (ManuallyDrop::take(&mut self.lease), ManuallyDrop::take(&mut self.store)) };
        if waits {
            release_later(Box::new(held));
        }
    }
}
