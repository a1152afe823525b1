//! The settings of one end of a connection.

use super::tensor_format::TensorFormat;
use cotensor_client::ClientStore;
use cotensor_functions::TensorAllocator;
use cotensor_store::Holder;
use pyo3::prelude::*;
use std::sync::Arc;

/// Encodes and decodes the values of one end: a caller or a provider.
#[derive(Clone)]
pub(crate) struct Codec {
    /// Allocates new tensors.
    pub(crate) allocator: TensorAllocator,
    pub(crate) holder: Holder,
    /// The name of new tensors.
    pub(crate) name: String,
    pub(crate) tensors: TensorFormat,
    /// Whether values of other types cross as pickles, and received pickles are opened.
    pub(crate) pickle: bool,
    /// Whether this end is a provider, which keeps torch modules and sends references to them.
    pub(crate) is_provider: bool,
    /// How a provider calls methods of its objects: a Python function of the method, the call, and the arguments.
    pub(crate) invoke: Option<Arc<Py<PyAny>>>,
}

impl Codec {
    pub(crate) fn store(&self) -> &Arc<ClientStore> {
        self.allocator.store()
    }

    /// This codec with another allocator for new tensors.
    pub(crate) fn writing_to(&self, allocator: TensorAllocator) -> Self {
        Self { allocator, ..self.clone() }
    }
}
