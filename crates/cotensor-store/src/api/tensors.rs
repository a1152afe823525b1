//! Tensors by name.

use crate::{Holder, Lease, Reservation, TensorId, TensorSpec};
use cotensor_core::Result;

/// Publishes tensors under names, and leases them.
///
/// Implementations are cheap to share between threads. All methods may be called at any time from any thread.
pub trait TensorStore: Send + Sync {
    /// The holder of that name; asking twice gives the same holder.
    fn holder(&self, name: &str) -> Holder;

    /// Leases the newest version of `name`.
    ///
    /// # Errors
    /// `NotFound` when no tensor of that name is published.
    fn get(&self, name: &str, holder: &Holder) -> Result<Lease>;

    /// Leases exactly this version.
    ///
    /// # Errors
    /// `NotFound` when it was superseded and released, evicted or never existed.
    fn lease(&self, id: TensorId, holder: &Holder) -> Result<Lease>;

    /// Whether exactly this version could be leased now, without leasing it.
    fn has(&self, id: TensorId) -> bool;

    /// Reserves memory for a tensor that `holder` will write and then publish.
    ///
    /// # Errors
    /// `OverBudget` when eviction could not make room (names holders and bytes); `Refused` when the
    /// sharing configuration forbids this kind or size (counted); `Invalid` for an impossible shape or name.
    fn reserve(&self, spec: TensorSpec, holder: &Holder) -> Result<Reservation>;

    /// Like [`reserve`](TensorStore::reserve) for a program that keeps the address of the bytes and may write there after
    /// publishing, such as another language's arrays: nobody else sees that then. The address stays as long as the
    /// tensor's memory.
    ///
    /// # Errors
    /// As [`reserve`](TensorStore::reserve); `Unsupported` where the store's memory cannot protect itself from that.
    fn reserve_aliased(&self, spec: TensorSpec, holder: &Holder) -> Result<Reservation>;

    /// Like [`reserve`](TensorStore::reserve) for a tensor that stays private: unnamed, unlisted, freed with its last
    /// lease. The budget applies, the sharing configuration does not.
    ///
    /// # Errors
    /// As [`reserve`](TensorStore::reserve), without `Refused`.
    fn reserve_private(&self, spec: TensorSpec, holder: &Holder) -> Result<Reservation>;

    /// Forgets `name`: no new lease can be taken, memory returns with the last lease.
    ///
    /// # Errors
    /// `NotFound` when there is no such name.
    fn remove(&self, name: &str) -> Result<()>;
}
