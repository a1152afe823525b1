//! The sum of the traits.

use crate::{BlobStore, ComputationStore, MemoryControl, NameStore, StoreReports, TensorStore};
use std::any::Any;

/// A tensor store: keeps tensors, finds them, leases them, and computes each result once.
///
/// A store implements the six traits; this one comes with them. `dyn Store` has the methods of all of them.
pub trait Store: TensorStore + NameStore + ComputationStore + BlobStore + MemoryControl + StoreReports + Any {}

impl<T: TensorStore + NameStore + ComputationStore + BlobStore + MemoryControl + StoreReports + Any> Store for T {}
