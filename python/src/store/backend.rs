//! The two kinds of store, and what a forked child does with its parent's.

use crate::process::ProcessLocal;
use cotensor::{Error, ErrorKind, LocalStore};
use cotensor_client::ClientStore;
use cotensor_core::sync::lock;
use std::sync::{Arc, Mutex};

/// A store inside this process, or a connection to the daemon's.
#[derive(Clone)]
pub(crate) enum Backend {
    Local(Arc<LocalStore>),
    Client(Arc<ClientStore>),
}

impl Backend {
    /// The connection to the daemon; none for a store inside this process.
    pub(super) fn client(&self) -> Option<Arc<ClientStore>> {
        match self {
            Backend::Local(_) => None,
            Backend::Client(store) => Some(Arc::clone(store)),
        }
    }

    /// Names onnxruntime of this installation to the daemon.
    pub(super) fn offer_library(&self) {
        if let (Self::Client(store), Some(library)) = (self, cotensor::model::engine::installed_library()) {
            store.offer_library(library);
        }
    }

    pub(super) fn store(&self) -> Arc<dyn cotensor::Store> {
        match self {
            Backend::Local(store) => Arc::clone(store) as Arc<dyn cotensor::Store>,
            Backend::Client(store) => Arc::clone(store) as Arc<dyn cotensor::Store>,
        }
    }
}

/// The backend of a `Store` object, until it is closed.
///
/// The lock is held briefly and only while attached to Python. A thread that forks is attached, so a forked child finds
/// the lock free.
pub(super) struct BackendCell(Mutex<Option<ProcessLocal<Backend>>>);

impl BackendCell {
    pub(super) fn new(backend: Backend) -> Self {
        Self(Mutex::new(Some(ProcessLocal::new(backend))))
    }

    /// The backend. A forked child connects to the daemon anew.
    ///
    /// # Errors
    /// `Conflict` for a closed store and for the parent's local store; the errors of the new connection.
    pub(super) fn get(&self) -> Result<Backend, Error> {
        let mut cell = lock(&self.0);
        let closed = || Error::new(ErrorKind::Conflict, "this store is closed");
        let backend = cell.as_mut().ok_or_else(closed)?;
        if !backend.is_ours() {
            let new = match &**backend {
                Backend::Local(_) => Err(Error::new(
                    ErrorKind::Conflict,
                    "this store belongs to the parent process: connect to a daemon to share tensors between processes, or \
                     create a store in this process",
                )),
                Backend::Client(parents) => ClientStore::connect(Some(parents.socket()), parents.client()),
            };
            *backend = ProcessLocal::new(Backend::Client(new?));
        }
        Ok((**backend).clone())
    }

    pub(super) fn take(&self) -> Option<ProcessLocal<Backend>> {
        lock(&self.0).take()
    }
}
