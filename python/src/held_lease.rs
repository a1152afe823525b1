//! A lease that Python objects hold.

use crate::process::ProcessLocal;
use crate::release::release_later;
use cotensor::{Lease, Store};
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
}

impl HeldLease {
    pub(crate) fn new(lease: Lease, store: Arc<dyn Store>) -> Arc<Self> {
        Self::keeping(lease, store, None)
    }

    /// A lease that holds another owner, too.
    pub(crate) fn keeping(lease: Lease, store: Arc<dyn Store>, keep: Option<Arc<dyn Any + Send + Sync>>) -> Arc<Self> {
        let (lease, store) = (ProcessLocal::new(lease), ProcessLocal::new(store));
        Arc::new(Self { lease: ManuallyDrop::new(lease), store: ManuallyDrop::new(store), _keep: keep })
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
