//! Tensors by name.

use crate::{Holder, Lease, Reservation, TensorId, TensorSpec};
use cotensor_core::Result;

/// Publishes tensors under names, and leases them.
///
/// Implementations are cheap to share between threads. All methods may be called at any time from any thread.
pub trait TensorStore: Send + Sync {
    /// The holder of that name.
    fn holder(&self, name: &str) -> Holder {
        Holder::new(name)
    }

    /// Leases the newest version of `name`.
    ///
    /// # Errors
    /// `NotFound` when no tensor of that name is published.
    fn get(&self, name: &str, holder: &Holder) -> Result<Lease>;

    /// As [`get`](TensorStore::get) for several names, in one round trip where that is possible. The outcomes are in the order of `names`.
    ///
    /// # Errors
    /// Each as [`get`](TensorStore::get).
    fn get_each(&self, names: &[String], holder: &Holder) -> Vec<Result<Lease>> {
        names.iter().map(|name| self.get(name, holder)).collect()
    }

    /// Leases exactly this version.
    ///
    /// # Errors
    /// `NotFound` when the version was freed or never existed.
    fn lease(&self, id: TensorId, holder: &Holder) -> Result<Lease>;

    /// Whether this version could be leased now.
    fn has(&self, id: TensorId) -> bool;

    /// Reserves memory for a tensor that `holder` will write and then publish.
    ///
    /// # Errors
    /// `OverBudget` when eviction could not make room; the error names holders and bytes. `Refused`, which is counted,
    /// when the configuration does not share this kind or size. `Invalid` for an impossible shape or name,
    /// `Unsupported` for a device that the store does not have.
    fn reserve(&self, spec: TensorSpec, holder: &Holder) -> Result<Reservation>;

    /// As [`reserve`](TensorStore::reserve) for a program that writes all bytes at once and then publishes: they may have values of earlier
    /// tensors of this process. The memory may be used again, in which case this process can write it after publishing; that of weights
    /// is sealed. `OverBudget` may also come from publishing.
    ///
    /// # Errors
    /// As [`reserve`](TensorStore::reserve).
    fn reserve_to_fill(&self, spec: TensorSpec, holder: &Holder) -> Result<Reservation> {
        self.reserve(spec, holder)
    }

    /// As [`reserve`](TensorStore::reserve) in memory that no process can write after publishing, this one included. Weights have it in any case. On
    /// devices, no memory is sealed.
    ///
    /// # Errors
    /// As [`reserve`](TensorStore::reserve).
    fn reserve_sealed(&self, spec: TensorSpec, holder: &Holder) -> Result<Reservation> {
        self.reserve(spec, holder)
    }

    /// As [`reserve`](TensorStore::reserve) for a program that keeps the address of the bytes and may write there after
    /// publishing, such as another language's arrays. Readers do not see these writes. The address stays valid as long
    /// as the memory of the tensor.
    ///
    /// # Errors
    /// As [`reserve`](TensorStore::reserve); `Unsupported` where the memory has no such protection.
    fn reserve_aliased(&self, spec: TensorSpec, holder: &Holder) -> Result<Reservation>;

    /// As [`reserve`](TensorStore::reserve) for a private tensor: unlisted, and freed with its last lease. The budget
    /// applies, the sharing configuration does not.
    ///
    /// # Errors
    /// As [`reserve`](TensorStore::reserve), without `Refused`.
    fn reserve_private(&self, spec: TensorSpec, holder: &Holder) -> Result<Reservation>;

    /// Removes `name`: no new lease can be taken, and the last lease frees the memory.
    ///
    /// # Errors
    /// `NotFound` when there is no such name.
    fn remove(&self, name: &str) -> Result<()> {
        self.remove_version(name, None)
    }

    /// As [`remove`](Self::remove), with `id` only if that is the newest version of `name`: of several callers that
    /// lease it and then remove it, one succeeds.
    ///
    /// # Errors
    /// `NotFound` when there is no such name, and when its newest version is another one.
    fn remove_version(&self, name: &str, id: Option<TensorId>) -> Result<()>;
}
