//! What a store is made of, for stores outside this crate: a client of the daemon, or a store of another kind.
//!
//! A [`Store`](crate::Store) hands out [`Lease`]s, [`Reservation`](crate::Reservation)s and [`Ticket`](crate::Ticket)s,
//! which act on their own when they are used or dropped. What they then ask for, they ask of their store's [`StoreBackend`].
//! The way of a tensor:
//!
//! 1. [`TensorStore::reserve`](crate::TensorStore::reserve) takes bytes from a [`Budget`], gets a segment, and returns
//!    [`Reservation::new`](crate::Reservation::new) of a [`UnpublishedTensor`].
//! 2. Publishing the reservation gives the draft to [`StoreBackend::publish`], which freezes the segment, makes a [`Record`],
//!    puts it where lookups find it, and returns its first lease.
//! 3. Lookups return [`Record::lease`].
//! 4. With the last lease of a record that is not [kept](RecordParts::kept) comes [`StoreBackend::release`], which
//!    [closes](Record::close) it and lets go of it.

use crate::{CopyReason, Holder, Key, Lease, TensorId, TensorSpec};
use cotensor_core::{Layout, Result, Segment, SegmentMut};
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

pub use crate::budget::{Budget, Charge, DIMENSION_BYTES, TEXT_COPIES, TensorCharge};
pub use crate::leases::{LeaseCount, Record, Released, VersionState};
pub use crate::names::Holders;

/// What stands behind leases, reservations and tickets: usually the store itself. Called from any thread, and never
/// under a lock of this crate.
pub trait StoreBackend: Send + Sync {
    /// Makes a reservation's tensor visible under its name, or leaves it unlisted where the draft says
    /// [private](UnpublishedTensor::private), and leases it to the draft's holder. `key` is the claim whose result it is part of.
    ///
    /// # Errors
    /// As [`Reservation::publish`](crate::Reservation::publish).
    fn publish(&self, draft: UnpublishedTensor, key: Option<Key>) -> Result<Lease>;

    /// The last lease of a record that is not kept is gone. Another may have been taken since: only when
    /// [`Record::close`] says true is it the home's to drop.
    fn release(&self, record: &Arc<Record>);

    /// A claim's results are published: at least one, none private, all leased while this runs.
    fn finish_computation(&self, key: Key, results: &[&Lease]);

    /// A claim was given up; one of those who wait takes over.
    fn abandon_computation(&self, key: Key);

    /// The name of a holder.
    fn holder_name(&self, id: u32) -> Arc<str>;

    /// `bytes` bytes of `tensor` were copied, for `reason`.
    fn count_copy(&self, tensor: &str, reason: CopyReason, bytes: usize);
}

/// A tensor that is being written: what [`Reservation::new`](crate::Reservation::new) takes and [`StoreBackend::publish`] gets
/// back. Dropped with an unpublished reservation.
pub struct UnpublishedTensor {
    /// What was asked for.
    pub spec: TensorSpec,
    /// Of that dtype and shape, row-major, inside the segment.
    pub layout: Layout,
    /// The memory.
    pub segment: Box<dyn SegmentMut>,
    /// What it takes from the budget.
    pub charge: TensorCharge,
    /// Who writes it.
    pub holder: Holder,
    /// Whether it stays unnamed and unlisted.
    pub private: bool,
    /// Whatever else the home keeps with it, such as the other side's reservation; `Box::new(())` for nothing.
    pub tag: Box<dyn Any + Send + Sync>,
}

/// What a [`Record`] is made of.
pub struct RecordParts {
    /// Of this version alone, as long as the store lives.
    pub id: TensorId,
    /// What was published, with the dtype and shape of the layout.
    pub spec: TensorSpec,
    /// How the elements lie in the segment.
    pub layout: Layout,
    /// The memory.
    pub segment: Arc<dyn Segment>,
    /// What it takes from the budget.
    pub charge: TensorCharge,
    /// Whether it stays when nobody leases it. Otherwise [`StoreBackend::release`] is called with the last lease.
    pub kept: bool,
    /// Who made it, where it is unlisted: it then goes with its last lease, and the home is not asked.
    pub private: Option<Holder>,
    /// The claim whose result it is part of.
    pub key: Option<Key>,
    /// When, by the store's clock.
    pub created: Duration,
}
