//! What a running function is told.

use super::{Failure, Outlet};
use cotensor_client::ClientStore;
use cotensor_core::{DType, Kind, Result};
use cotensor_store::{CopyReason, Holder, Lease, Retention, TensorSpec};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// One run of a function: who wants it, and whether anybody still does.
pub struct Context {
    pub(crate) outlet: Outlet,
    pub(crate) holder: Holder,
    pub(crate) function: Arc<str>,
    pub(crate) client: Arc<str>,
    pub(crate) cancelled: Arc<AtomicBool>,
}

impl Context {
    /// The function's name; for a method of an object, `object.` and the method's.
    pub fn function(&self) -> &str {
        &self.function
    }

    /// Who calls: name and process, for people. When several wait for one run, the first of them.
    pub fn client(&self) -> &str {
        &self.client
    }

    /// Whether nobody wants the result any more. Long functions ask now and then, and return.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::SeqCst)
    }

    /// The same for whoever asks from elsewhere, such as another language: true once nobody wants the result.
    pub fn cancellation(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.cancelled)
    }

    /// As [`is_cancelled`](Self::is_cancelled), for `?`.
    ///
    /// # Errors
    /// When nobody wants the result any more.
    pub fn check(&self) -> Result<(), Failure> {
        if self.is_cancelled() { Err(Failure::cancelled()) } else { Ok(()) }
    }

    /// The store that arguments and results are in.
    pub fn store(&self) -> &Arc<ClientStore> {
        self.outlet.store()
    }

    /// Where to write tensors of the result.
    pub fn outlet(&self) -> &Outlet {
        &self.outlet
    }

    /// Under whose name arguments are leased.
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    /// A new tensor from bytes, in row-major order: for results. It stays as long as somebody leases it.
    ///
    /// # Errors
    /// As [`Outlet::reserve`]; `Invalid` when there are more or fewer bytes than the shape wants.
    pub fn tensor(&self, name: &str, dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Lease> {
        let spec = TensorSpec {
            device: cotensor_core::Device::Cpu,
            name: name.to_owned(),
            dtype,
            shape: shape.to_vec(),
            kind: Kind::Other,
            space: None,
            producer: self.function.to_string(),
            retention: Retention::WhileLeased,
            provenance: None,
        };
        let mut reservation = self.outlet.reserve(spec, &self.holder)?;
        reservation.write(bytes, CopyReason::Put)?;
        reservation.publish()
    }
}
