//! The end of a connection that encodes and decodes values.

use crate::allocator::TensorAllocator;
use crate::arena::ConnectionArena;
use crate::value::Value;
use cotensor_client::ClientStore;
use cotensor_client::protocol::provider::{ArenaRange, ObjectRef};
use cotensor_core::Result;
use cotensor_store::{Holder, Lease};
use std::sync::Arc;

/// One end of a connection between a caller and a provider: resolves the references in messages.
pub(crate) trait CodecContext {
    /// The store of this end.
    fn store(&self) -> &ClientStore;
    /// The holder of leases on decoded tensors.
    fn holder(&self) -> &Holder;
    /// The connection's arena for small tensors.
    fn arena(&self) -> &Arc<ConnectionArena>;
    /// Allocates tensors for long byte strings and texts.
    fn allocator(&self) -> TensorAllocator;
    /// The reference of an object.
    fn reference_to(&self, object: &Value) -> Result<ObjectRef>;
    /// The object of a reference.
    fn resolve(&self, object: ObjectRef) -> Result<Value>;
}

/// The tensors of a message, which stay leased until the other end has leased them.
#[derive(Default)]
pub(crate) struct SentTensors {
    /// Whether the message has tensors of the store.
    pub(crate) has_published: bool,
    /// Leases that were made for the message.
    pub(crate) leases: Vec<Lease>,
    /// Ranges of the arena.
    pub(crate) ranges: Vec<ArenaRange>,
}
