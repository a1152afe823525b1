//! `Context`: the environment of a running function.

use crate::allocator::TensorAllocator;
use crate::failure::Failure;
use crate::scope::Scope;
use cotensor_client::ClientStore;
use cotensor_core::{DType, Result};
use cotensor_store::{CopyReason, Holder, Lease, TensorSpec};
use std::sync::Arc;

/// One run of a function: its caller, its cancellation and its allocator.
pub struct Context {
    pub(crate) allocator: TensorAllocator,
    pub(crate) holder: Holder,
    pub(crate) function: Arc<str>,
    pub(crate) client: Arc<str>,
    pub(crate) scope: Arc<Scope>,
}

impl Context {
    /// The function's name; for a method of an object, `object.` and the method's name.
    pub fn function(&self) -> &str {
        &self.function
    }

    /// The caller's name and process, for messages. The first caller, when several wait for this run.
    pub fn client(&self) -> &str {
        &self.client
    }

    /// Whether the run was cancelled: no caller waits for its result. Long functions check this periodically.
    pub fn is_cancelled(&self) -> bool {
        self.scope.is_cancelled()
    }

    /// The limits of the run, for calls that the function makes on other threads.
    pub fn scope(&self) -> &Arc<Scope> {
        &self.scope
    }

    /// As [`is_cancelled`](Self::is_cancelled), for use with `?`.
    ///
    /// # Errors
    /// When the run was cancelled.
    pub fn check(&self) -> Result<(), Failure> {
        if self.is_cancelled() { Err(Failure::cancelled()) } else { Ok(()) }
    }

    /// The store of the arguments' and results' tensors.
    pub fn store(&self) -> &Arc<ClientStore> {
        self.allocator.store()
    }

    /// Allocates tensors of the result.
    pub fn allocator(&self) -> &TensorAllocator {
        &self.allocator
    }

    /// The holder that arguments are leased to.
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Creates a tensor of the result from row-major bytes. It is freed with its last lease.
    ///
    /// # Errors
    /// As [`TensorAllocator::reserve`]; `Invalid` when the length does not match the shape.
    pub fn tensor(&self, name: &str, dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Lease> {
        let spec = TensorSpec { producer: self.function.to_string(), ..TensorSpec::new(name, dtype, shape) };
        let mut reservation = self.allocator.reserve(spec, &self.holder)?;
        reservation.write(bytes, CopyReason::Put)?;
        reservation.publish()
    }
}
