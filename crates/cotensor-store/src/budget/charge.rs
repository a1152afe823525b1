//! Budgets and charges. Reserving memory takes a charge; dropping the charge returns its bytes.
//!
//! The metadata of a tensor (name, record, leases) counts too: for a small tensor it is larger than the content.

use cotensor_core::Device;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// The copies of a tensor's name and producer: in the table of names, in its record, and in the journals of two
/// processes.
pub const TEXT_COPIES: u64 = 4;
/// Bytes of one dimension: size and stride in the layout, and in the journals of two processes.
pub const DIMENSION_BYTES: u64 = 32;

/// The bytes of one device that are in use, and their limit.
#[derive(Debug)]
pub struct Budget {
    device: Device,
    /// The budget of the host, which holds the metadata. None in that budget itself.
    host: Option<Arc<Budget>>,
    used: AtomicU64,
    /// The part of `used` that is metadata.
    metadata: AtomicU64,
    /// Metadata bytes of a tensor without name, producer and dimensions. Zero counts no metadata.
    metadata_each: u64,
    /// The part of `used` whose tensors are all closed. It is returned when the last thread drops its reference to
    /// them.
    leaving: AtomicU64,
    peak: AtomicU64,
    max: AtomicU64,
}

impl Budget {
    /// A budget of `max` bytes of host memory; `u64::MAX` means no limit.
    pub fn new(max: u64) -> Arc<Self> {
        Self::with_metadata(max, 0)
    }

    /// A budget of `max` bytes of host memory, of which the metadata of a tensor takes `each` bytes and more for its
    /// texts and dimensions.
    pub fn with_metadata(max: u64, each: u64) -> Arc<Self> {
        let [used, metadata, leaving, peak] = [(); 4].map(|()| AtomicU64::new(0));
        let (device, host) = (Device::default(), None);
        Arc::new(Self { device, host, used, metadata, metadata_each: each, leaving, peak, max: max.into() })
    }

    /// A budget of `max` bytes of `device`. The metadata of its tensors is host memory, so `host` counts it.
    pub(crate) fn of_device(device: Device, max: u64, host: &Arc<Self>) -> Arc<Self> {
        let [used, metadata, leaving, peak] = [(); 4].map(|()| AtomicU64::new(0));
        let host = Some(Arc::clone(host));
        Arc::new(Self { device, host, used, metadata, metadata_each: 0, leaving, peak, max: max.into() })
    }

    /// The device whose memory it counts.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The budget that counts the metadata of this one's tensors.
    fn metadata_budget(&self) -> &Self {
        self.host.as_deref().unwrap_or(self)
    }

    /// The limit, in bytes.
    pub fn max(&self) -> u64 {
        self.max.load(Ordering::SeqCst)
    }

    /// Sets the limit. Bytes in use stay; nothing fits until enough of them are returned.
    pub fn set_max(&self, max: u64) {
        self.max.store(max, Ordering::SeqCst);
    }

    /// Bytes in use by the memory of tensors.
    pub fn used(&self) -> u64 {
        // Metadata is read first: metadata that is taken in between then counts as memory, and the result is not
        // negative.
        let metadata = self.metadata();
        self.total().saturating_sub(metadata)
    }

    /// Bytes in use by metadata.
    pub fn metadata(&self) -> u64 {
        self.metadata.load(Ordering::SeqCst)
    }

    /// Bytes in use by both.
    pub(crate) fn total(&self) -> u64 {
        self.used.load(Ordering::SeqCst)
    }

    /// Metadata bytes of a tensor whose name and producer have `text` bytes together.
    pub(crate) fn metadata_of(&self, text: usize, dimensions: usize) -> u64 {
        match self.metadata_each {
            0 => 0,
            each => each + TEXT_COPIES * text as u64 + DIMENSION_BYTES * dimensions as u64,
        }
    }

    /// The most bytes that the memory of tensors took at a time.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::SeqCst)
    }

    /// Takes `bytes` if they fit. Dropping the charge returns them.
    pub fn take(self: &Arc<Self>, bytes: u64) -> Option<Arc<Charge>> {
        self.add_if_fits(bytes).then(|| self.new_charge(bytes))
    }

    /// Takes `bytes` even beyond the limit.
    pub fn take_unchecked(self: &Arc<Self>, bytes: u64) -> Arc<Charge> {
        self.used.fetch_add(bytes, Ordering::SeqCst);
        self.new_charge(bytes)
    }

    /// Takes `bytes` for the metadata of one more tensor of a segment, if they fit.
    pub(crate) fn take_metadata(&self, segment: &Arc<Charge>, bytes: u64) -> Option<TensorCharge> {
        self.add_if_fits(bytes).then(|| self.new_tensor_charge(segment, bytes))
    }

    /// Takes `bytes` for the metadata of one more tensor of a segment, even beyond the limit.
    pub(crate) fn take_metadata_unchecked(&self, segment: &Arc<Charge>, bytes: u64) -> TensorCharge {
        self.used.fetch_add(bytes, Ordering::SeqCst);
        self.new_tensor_charge(segment, bytes)
    }

    /// Takes `bytes` for the metadata of spilled tensors, even beyond the limit.
    pub(crate) fn take_spilled_unchecked(self: &Arc<Self>, bytes: u64) -> SpilledCharge {
        self.used.fetch_add(bytes, Ordering::SeqCst);
        self.metadata.fetch_add(bytes, Ordering::SeqCst);
        SpilledCharge { bytes, budget: Arc::clone(self) }
    }

    /// Adds `bytes` to those in use if they fit.
    fn add_if_fits(&self, bytes: u64) -> bool {
        let fits = |used: u64| used.checked_add(bytes).filter(|&total| total <= self.max());
        self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fits).is_ok()
    }

    fn new_charge(self: &Arc<Self>, bytes: u64) -> Arc<Charge> {
        self.peak.fetch_max(self.used(), Ordering::SeqCst);
        let (users, leaving) = (AtomicUsize::new(0), AtomicBool::new(false));
        Arc::new(Charge { bytes, users, leaving, budget: Arc::clone(self) })
    }

    fn new_tensor_charge(&self, segment: &Arc<Charge>, metadata: u64) -> TensorCharge {
        self.metadata.fetch_add(metadata, Ordering::SeqCst);
        TensorCharge { segment: Arc::clone(segment), metadata, leaving: AtomicBool::new(false) }
    }

    /// Whether `bytes` will fit once all leaving bytes are returned, and `freed` bytes more.
    pub(crate) fn will_fit(&self, bytes: u64, freed: u64) -> bool {
        // `leaving` is read first: a charge that is dropped in between then counts in neither figure.
        let leaving = self.leaving.load(Ordering::SeqCst);
        let staying = self.total().saturating_sub(leaving).saturating_sub(freed);
        staying.checked_add(bytes).is_some_and(|total| total <= self.max())
    }
}

/// The bytes of one segment, taken from a budget and returned on drop. All tensors of the segment share it.
#[derive(Debug)]
pub struct Charge {
    pub(crate) bytes: u64,
    /// Tensors of the segment that are not closed, and segment charges.
    users: AtomicUsize,
    /// Whether the bytes count as leaving.
    leaving: AtomicBool,
    budget: Arc<Budget>,
}

impl Charge {
    /// The device whose memory it counts.
    pub fn device(&self) -> Device {
        self.budget.device()
    }

    /// The budget that counts it.
    pub(crate) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Its bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds the bytes of another charge of the same budget. `None`, and both are returned, when either is shared.
    pub(crate) fn join(self: Arc<Self>, more: Arc<Self>) -> Option<Arc<Self>> {
        let mut joined = self;
        let mut more = Arc::into_inner(more)?;
        let bytes = &mut Arc::get_mut(&mut joined)?.bytes;
        *bytes += std::mem::take(&mut more.bytes);
        Some(joined)
    }

    /// The number of users: open tensors of the segment, and segment charges.
    #[must_use]
    pub(crate) fn users(&self) -> usize {
        self.users.load(Ordering::SeqCst)
    }

    /// Adds a user.
    pub(crate) fn open(&self) {
        self.users.fetch_add(1, Ordering::SeqCst);
    }

    /// Adds a user. False after the last one has left: the bytes are leaving.
    pub(crate) fn share(&self) -> bool {
        self.users.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |users| (users > 0).then(|| users + 1)).is_ok()
    }

    /// Removes a user. After the last one the bytes are leaving.
    pub(crate) fn close(&self) {
        if self.users.fetch_sub(1, Ordering::SeqCst) == 1 && !self.leaving.swap(true, Ordering::SeqCst) {
            self.budget.leaving.fetch_add(self.bytes, Ordering::SeqCst);
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::SeqCst);
        if *self.leaving.get_mut() {
            self.budget.leaving.fetch_sub(self.bytes, Ordering::SeqCst);
        }
    }
}

/// The charge of one tensor: that of its segment, which all tensors of the segment share, and its metadata, which is
/// returned on drop.
#[derive(Debug)]
pub struct TensorCharge {
    segment: Arc<Charge>,
    /// In bytes.
    metadata: u64,
    /// Whether the metadata counts as leaving.
    leaving: AtomicBool,
}

impl From<Arc<Charge>> for TensorCharge {
    /// The charge of a tensor whose metadata does not count.
    fn from(segment: Arc<Charge>) -> Self {
        Self { segment, metadata: 0, leaving: AtomicBool::new(false) }
    }
}

impl TensorCharge {
    /// The charge of its segment.
    pub(crate) fn segment(&self) -> &Arc<Charge> {
        &self.segment
    }

    /// Its metadata, in bytes.
    pub(crate) fn metadata(&self) -> u64 {
        self.metadata
    }

    /// The tensor is closed: its metadata is leaving.
    pub(crate) fn close(&self) {
        self.segment.close();
        if !self.leaving.swap(true, Ordering::SeqCst) {
            self.segment.budget.metadata_budget().leaving.fetch_add(self.metadata(), Ordering::SeqCst);
        }
    }
}

impl Drop for TensorCharge {
    fn drop(&mut self) {
        let (budget, bytes) = (self.segment.budget.metadata_budget(), self.metadata());
        budget.metadata.fetch_sub(bytes, Ordering::SeqCst);
        budget.used.fetch_sub(bytes, Ordering::SeqCst);
        if *self.leaving.get_mut() {
            budget.leaving.fetch_sub(bytes, Ordering::SeqCst);
        }
    }
}

/// The metadata of spilled tensors, returned on drop.
#[derive(Debug)]
pub(crate) struct SpilledCharge {
    bytes: u64,
    budget: Arc<Budget>,
}

impl Drop for SpilledCharge {
    fn drop(&mut self) {
        self.budget.metadata.fetch_sub(self.bytes, Ordering::SeqCst);
        self.budget.used.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_charges_are_returned() {
        let budget = Budget::new(100);
        let a = budget.take(60).unwrap();
        assert!(budget.take(41).is_none());
        assert!(budget.take(u64::MAX).is_none());
        let b = budget.take(40).unwrap();
        assert_eq!(budget.used(), 100);
        drop((a, b));
        assert_eq!((budget.used(), budget.peak()), (0, 100));
    }

    #[test]
    fn only_unshared_charges_are_joined() {
        let budget = Budget::new(100);
        let joined = budget.take(60).unwrap().join(budget.take(30).unwrap()).unwrap();
        assert_eq!((joined.bytes(), budget.used()), (90, 90));
        let shared = Arc::clone(&joined);
        assert!(shared.join(budget.take(10).unwrap()).is_none());
        assert_eq!(budget.used(), 90);
        drop(joined);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn leaving_bytes_will_fit() {
        let budget = Budget::new(100);
        let charge = budget.take(60).unwrap();
        charge.open();
        charge.open();
        charge.close();
        assert!(!budget.will_fit(41, 0) && budget.will_fit(41, 60), "one tensor of the segment is open");
        charge.close();
        assert!(budget.will_fit(100, 0) && !budget.will_fit(101, 0));
        assert!(budget.take(41).is_none(), "it is not returned yet");
        drop(charge);
        assert!(budget.will_fit(100, 0) && budget.take(100).is_some());
    }

    #[test]
    fn metadata_is_counted_and_leaves_with_its_tensor() {
        let budget = Budget::with_metadata(100, 10);
        let segment = budget.take(70).unwrap();
        let charges: Vec<TensorCharge> = (0..3).map(|_| budget.take_metadata(&segment, 10).unwrap()).collect();
        assert_eq!((budget.used(), budget.metadata(), budget.peak()), (70, 30, 70));
        assert!(budget.take(1).is_none() && budget.take_metadata(&segment, 10).is_none());
        let spilled = budget.take_spilled_unchecked(20);
        assert_eq!((budget.used(), budget.metadata(), budget.total()), (70, 50, 120));
        drop(spilled);
        charges.iter().for_each(|_| segment.open());
        charges[0].close();
        assert!(budget.will_fit(10, 0) && !budget.will_fit(11, 0), "one tensor of the segment is leaving");
        charges[1..].iter().for_each(TensorCharge::close);
        assert!(budget.will_fit(100, 0));
        drop((charges, segment));
        assert_eq!((budget.used(), budget.metadata(), budget.total()), (0, 0, 0));
        assert!(budget.take(100).is_some());
    }
}
