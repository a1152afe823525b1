use crate::backend::{StoreBackend, UnpublishedTensor};
use crate::{CopyReason, Key, Lease};
use cotensor_core::{Device, Error, ErrorKind, Layout, Result};
use std::any::Any;
use std::fmt;
use std::sync::{Arc, Weak};

/// Memory that one holder writes before anybody sees it. Dropping it gives the memory back.
pub struct Reservation {
    pub(crate) draft: UnpublishedTensor,
    home: Arc<dyn StoreBackend>,
}

impl Reservation {
    /// A reservation that `home` publishes.
    pub fn new(draft: UnpublishedTensor, home: Arc<dyn StoreBackend>) -> Self {
        Self { draft, home }
    }

    /// The name to publish under.
    pub fn name(&self) -> &str {
        &self.draft.spec.name
    }

    /// How the elements lie: row-major from the start.
    pub fn layout(&self) -> &Layout {
        &self.draft.layout
    }

    /// Where it lies.
    pub fn device(&self) -> Device {
        self.draft.spec.device
    }

    /// The bytes so far, where the host can address them.
    pub fn bytes(&self) -> Option<&[u8]> {
        self.draft.segment.bytes()
    }

    /// The bytes for writing in place, where the host can address them.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        self.draft.segment.bytes_mut()
    }

    /// For programs that keep the address of the bytes: it stays good as long as they keep this, even when publishing fails.
    /// None for what was not reserved by [`TensorStore::reserve_aliased`](crate::TensorStore::reserve_aliased).
    pub fn pin_address(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.draft.segment.pin_address()
    }

    /// Copies `bytes` to the start of the tensor, and counts the copy under `reason`.
    ///
    /// # Errors
    /// `Invalid` when they do not fit.
    pub fn write(&mut self, bytes: &[u8], reason: CopyReason) -> Result<()> {
        self.draft.segment.write_at(self.draft.layout.offset_bytes(), bytes)?;
        self.home.count_copy(&self.draft.spec.name, reason, bytes.len());
        Ok(())
    }

    /// Counts a copy of `bytes` bytes that was made to fill it by other means than [`write`](Self::write).
    pub fn record_copy(&self, reason: CopyReason, bytes: usize) {
        self.home.count_copy(&self.draft.spec.name, reason, bytes);
    }

    /// Makes the tensor immutable and visible under its name, and leases it to its holder.
    ///
    /// # Errors
    /// `Io` when the memory cannot be sealed.
    pub fn publish(self) -> Result<Lease> {
        self.home.publish(self.draft, None)
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reservation({} {:?})", self.name(), self.layout())
    }
}

/// The right and the duty to compute a claimed key. Dropping it hands both to one of those who wait.
pub struct Ticket {
    key: Key,
    home: Weak<dyn StoreBackend>,
    open: bool,
}

impl Ticket {
    /// The ticket of `key`, which `home` gives to one caller at a time.
    pub fn new(key: Key, home: Weak<dyn StoreBackend>) -> Self {
        Self { key, home, open: true }
    }

    /// What is to be computed.
    pub fn key(&self) -> Key {
        self.key
    }

    /// Publishes the results; whoever waits gets them.
    ///
    /// # Errors
    /// `Invalid` without any result, or when one is private or of another store: nobody could ever be given those.
    /// Else as [`Reservation::publish`]. The claim is then given up.
    pub fn publish(mut self, results: Vec<Reservation>) -> Result<Vec<Lease>> {
        let home = self.home.upgrade().ok_or_else(|| Error::new(ErrorKind::Conflict, "the store is closed"))?;
        if results.is_empty() {
            return Err(Error::invalid("a computation without results cannot be shared: decline it"));
        }
        for result in &results {
            if result.draft.private {
                return Err(Error::invalid(format!("{} is private, a claim's results are not", result.name())));
            }
            // The objects are compared, not the tables of functions beside them, which may exist more than once.
            if !std::ptr::addr_eq(Arc::as_ptr(&result.home), Arc::as_ptr(&home)) {
                return Err(Error::invalid(format!("{} was reserved in another store", result.name())));
            }
        }
        let leases: Vec<Lease> =
            results.into_iter().map(|result| home.publish(result.draft, Some(self.key))).collect::<Result<_>>()?;
        self.finish(&leases);
        Ok(leases)
    }

    /// Makes tensors that were published under this ticket already the claim's results; see
    /// [`EmbeddedStore::adopt`](crate::EmbeddedStore::adopt).
    pub fn finish<'a>(&mut self, leases: impl IntoIterator<Item = &'a Lease>) {
        if let Some(home) = self.home.upgrade() {
            self.open = false;
            home.finish_computation(self.key, &leases.into_iter().collect::<Vec<_>>());
        }
    }

    /// Gives the claim up: the result stays the caller's own.
    pub fn decline(self) {}
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.open
            && let Some(home) = self.home.upgrade()
        {
            home.abandon_computation(self.key);
        }
    }
}
