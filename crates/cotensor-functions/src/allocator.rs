//! Allocation of tensors that are arguments or results.

use crate::arena::ConnectionArena;
use cotensor_client::ClientStore;
use cotensor_core::Result;
use cotensor_store::{Holder, Reservation, TensorSpec, TensorStore};
use std::sync::Arc;

/// Allocates tensors that are arguments or results. Tensors of up to 64 MiB go into the connection's arena, which needs no
/// request to the daemon; larger ones, and tensors for several readers, are published in the store.
#[derive(Clone)]
pub struct TensorAllocator {
    store: Arc<ClientStore>,
    arena: Option<Arc<ConnectionArena>>,
}

/// An allocator that publishes every tensor in the store.
impl From<Arc<ClientStore>> for TensorAllocator {
    fn from(store: Arc<ClientStore>) -> Self {
        Self::new(store, None)
    }
}

impl TensorAllocator {
    pub(crate) fn new(store: Arc<ClientStore>, arena: Option<Arc<ConnectionArena>>) -> Self {
        Self { store, arena }
    }

    /// The store of published tensors.
    pub fn store(&self) -> &Arc<ClientStore> {
        &self.store
    }

    /// Reserves memory for a tensor. The memory is not zeroed: write all of it at once, and then publish it. A tensor of an
    /// arena that is passed over another connection is copied into the store.
    ///
    /// # Errors
    /// As [`TensorStore::reserve_to_fill`].
    pub fn reserve(&self, spec: TensorSpec, holder: &Holder) -> Result<Reservation> {
        // An arena describes plain tensors only.
        if spec.members.is_some() {
            return self.store.reserve(spec, holder);
        }
        let layout = spec.layout().map_err(|error| error.in_field(spec.name.as_str()))?;
        // The store takes every tensor that the arena cannot.
        match self.arena.as_ref().and_then(|arena| arena.reserve(layout.size_bytes()).ok().flatten()) {
            Some(segment) => self.store.reserve_in_private(spec, layout, segment, holder),
            None => self.store.reserve_to_fill(spec, holder),
        }
    }
}
