//! The API of store backends: what a store outside this crate implements and uses, such as a client of the daemon.
//!
//! A [`Store`](crate::Store) hands out [`Lease`]s, [`Reservation`](crate::Reservation)s and [`Ticket`](crate::Ticket)s.
//! When these are used or dropped, they call their [`StoreBackend`]. The life of a tensor:
//!
//! 1. [`TensorStore::reserve`](crate::TensorStore::reserve) takes bytes from a [`Budget`], reserves a segment, and
//!    returns a [`Reservation`](crate::Reservation) of an [`UnpublishedTensor`].
//! 2. Publishing the reservation passes that to [`StoreBackend::publish`], which freezes the segment, makes a
//!    [`Record`], adds it to the tables of lookups, and returns its first lease.
//! 3. Lookups return [`Record::lease`].
//! 4. The last lease of a record that is not [retained](RecordParts::retained) calls [`LeaseBackend::release`], which
//!    [closes](Record::close) the record and removes it.

use crate::{Expected, Holder, Key, Lease, TensorSpec};
use cotensor_core::{Layout, Result, SegmentMut};
use std::any::Any;

pub use crate::budget::{Budget, Charge, DIMENSION_BYTES, TEXT_COPIES, TensorCharge};
pub use crate::leases::{LeaseBackend, Record, RecordParts, VersionState};

/// The backend of leases, reservations and tickets: usually the store itself. Called from any thread, and never under a
/// lock of this crate.
pub trait StoreBackend: LeaseBackend {
    /// Publishes a tensor under its name, or unlisted if it is [private](UnpublishedTensor::private), and leases it to
    /// its holder. `key` is the computation whose result it is.
    ///
    /// # Errors
    /// As [`Reservation::publish`](crate::Reservation::publish).
    fn publish(&self, tensor: UnpublishedTensor, key: Option<Key>) -> Result<Lease>;

    /// As [`publish`](Self::publish), for several tensors. A backend of another process publishes many in one round trip.
    fn publish_each(&self, tensors: Vec<(UnpublishedTensor, Option<Key>)>) -> Vec<Result<Lease>> {
        tensors.into_iter().map(|(tensor, key)| self.publish(tensor, key)).collect()
    }

    /// Called when the results of a computation are published: at least one, none private, all leased during the call.
    fn finish_computation(&self, key: Key, results: &[&Lease]);

    /// Called when a computation was abandoned: one of the waiting callers computes instead.
    fn abandon_computation(&self, key: Key);
}

/// A tensor that its producer writes, in a [`Reservation`](crate::Reservation). No other holder sees it.
pub struct UnpublishedTensor {
    /// The description.
    pub spec: TensorSpec,
    /// Of that dtype and shape, row-major, inside the segment.
    pub layout: Layout,
    /// The memory.
    pub segment: Box<dyn SegmentMut>,
    /// Its bytes of the budget.
    pub charge: TensorCharge,
    /// The holder that writes it.
    pub holder: Holder,
    /// Whether it stays unlisted after publishing.
    pub private: bool,
    /// The newest version that its name must have when it is published; nothing for a private tensor.
    pub expected: Expected,
    /// Data of the backend, such as the reservation of another process; `Box::new(())` for none.
    pub tag: Box<dyn Any + Send + Sync>,
}
