//! Tickets of computations.

use crate::backend::StoreBackend;
use crate::{Key, Lease, Reservation};
use cotensor_core::{Error, ErrorKind, Result};
use std::sync::{Arc, Weak};

/// The right to compute a claimed key. Dropping it passes the right to one of the waiting callers.
pub struct Ticket {
    key: Key,
    backend: Weak<dyn StoreBackend>,
    open: bool,
}

impl Ticket {
    /// The ticket of `key`. A backend gives each key to one caller at a time.
    pub fn new(key: Key, backend: Weak<dyn StoreBackend>) -> Self {
        Self { key, backend, open: true }
    }

    /// The computation.
    pub fn key(&self) -> Key {
        self.key
    }

    /// Publishes the results. Waiting callers lease them.
    ///
    /// # Errors
    /// `Invalid` without a result, or when a result is private or of another store, so that no other caller could lease
    /// it. Else as [`Reservation::publish`]. An error abandons the claim.
    pub fn publish(mut self, results: Vec<Reservation>) -> Result<Vec<Lease>> {
        let backend = self.backend()?;
        if results.is_empty() {
            return Err(Error::invalid("a computation needs at least one result; abandon the ticket if there is none"));
        }
        for result in &results {
            check(result, &backend)?;
        }
        let leases: Vec<Lease> =
            results.into_iter().map(|result| backend.publish(result.tensor, Some(self.key))).collect::<Result<_>>()?;
        self.finish(&leases);
        Ok(leases)
    }

    /// Publishes the results of several computations of one store, of which each has one. The leases are in the same order.
    ///
    /// # Errors
    /// The first, as of [`publish`](Self::publish). Results before and after it may be published.
    pub fn publish_each(results: Vec<(Ticket, Reservation)>) -> Result<Vec<Lease>> {
        let Some((first, _)) = results.first() else { return Ok(Vec::new()) };
        let backend = first.backend()?;
        for (_, result) in &results {
            check(result, &backend)?;
        }
        let (mut tickets, tensors): (Vec<_>, Vec<_>) = results
            .into_iter()
            .map(|(ticket, result)| {
                let key = ticket.key;
                (ticket, (result.tensor, Some(key)))
            })
            .unzip();
        let published = backend.publish_each(tensors).into_iter().zip(&mut tickets);
        let finished: Vec<_> = published.map(|(lease, ticket)| lease.inspect(|lease| ticket.finish([lease]))).collect();
        finished.into_iter().collect()
    }

    fn backend(&self) -> Result<Arc<dyn StoreBackend>> {
        self.backend.upgrade().ok_or_else(|| Error::new(ErrorKind::Conflict, "the store is closed"))
    }

    /// Ends the claim with results that are published already; see
    /// [`LocalStore::adopt`](crate::LocalStore::adopt).
    pub fn finish<'a>(&mut self, leases: impl IntoIterator<Item = &'a Lease>) {
        if let Some(backend) = self.backend.upgrade() {
            self.open = false;
            backend.finish_computation(self.key, &leases.into_iter().collect::<Vec<_>>());
        }
    }

    /// Abandons the claim: one of the waiting callers computes instead.
    pub fn abandon(self) {}
}

/// Whether a result can be published to `backend` for other callers.
fn check(result: &Reservation, backend: &Arc<dyn StoreBackend>) -> Result<()> {
    if result.tensor.private {
        return Err(Error::invalid(format!("{} is private; results of a claim are shared", result.name())));
    }
    if result.is_of(backend) {
        Ok(())
    } else {
        Err(Error::invalid(format!("{} was reserved in another store", result.name())))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.open
            && let Some(backend) = self.backend.upgrade()
        {
            backend.abandon_computation(self.key);
        }
    }
}
