//! A lease that Python objects hold.

use crate::process::ProcessLocal;
use cotensor::{Lease, Store};
use std::any::Any;
use std::sync::Arc;

/// A lease and its store. Every Python object that shows the tensor holds one.
pub(crate) struct HeldLease {
    lease: ProcessLocal<Lease>,
    store: ProcessLocal<Arc<dyn Store>>,
    /// Another owner with the same lifetime.
    _keep: Option<Arc<dyn Any + Send + Sync>>,
}

impl HeldLease {
    pub(crate) fn new(lease: Lease, store: Arc<dyn Store>) -> Arc<Self> {
        Self::keeping(lease, store, None)
    }

    /// A lease that holds another owner, too.
    pub(crate) fn keeping(lease: Lease, store: Arc<dyn Store>, keep: Option<Arc<dyn Any + Send + Sync>>) -> Arc<Self> {
        Arc::new(Self { lease: ProcessLocal::new(lease), store: ProcessLocal::new(store), _keep: keep })
    }

    pub(crate) fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The store; `None` in a forked child.
    pub(crate) fn store(&self) -> Option<&Arc<dyn Store>> {
        self.store.is_ours().then_some(&*self.store)
    }
}
