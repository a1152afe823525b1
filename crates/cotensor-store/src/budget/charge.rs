//! The memory budget: counted when memory is reserved, given back when its last user is gone. What a store needs to know
//! about a tensor counts too: of small tensors it takes more than their bytes.

use cotensor_core::Device;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Name and producer are kept so often: by the store's table of names, its records and two ledgers.
pub const TEXT_COPIES: u64 = 4;
/// What a dimension takes: it and its stride in a layout, and in two ledgers.
pub const DIMENSION_BYTES: u64 = 32;

/// Bytes of one device in use against the most that may be.
#[derive(Debug)]
pub struct Budget {
    device: Device,
    /// The budget of the host, which holds the metadata. None in that budget itself.
    host: Option<Arc<Budget>>,
    used: AtomicU64,
    /// Of these, what is not memory of tensors but what is known about them.
    metadata: AtomicU64,
    /// How much that is of a tensor without name, producer and dimensions; nothing is counted where it is zero.
    metadata_each: u64,
    /// Of those in use, bytes whose tensors are all closed: they come back as soon as whoever touched one last lets go.
    leaving: AtomicU64,
    peak: AtomicU64,
    max: AtomicU64,
}

impl Budget {
    /// A budget of `max` bytes of host memory; `u64::MAX` is no limit.
    pub fn new(max: u64) -> Arc<Self> {
        Self::with_metadata(max, 0)
    }

    /// A budget of `max` bytes, of which what is known about a tensor takes `each`, and more for what is written in it.
    pub fn with_metadata(max: u64, each: u64) -> Arc<Self> {
        let [used, metadata, leaving, peak] = [(); 4].map(|()| AtomicU64::new(0));
        let (device, host) = (Device::Cpu, None);
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

    /// The most bytes that may be in use.
    pub fn max(&self) -> u64 {
        self.max.load(Ordering::SeqCst)
    }

    /// Changes that. What is in use already stays; nothing more fits until enough of it is gone.
    pub fn set_max(&self, max: u64) {
        self.max.store(max, Ordering::SeqCst);
    }

    /// Bytes in use by tensors' memory.
    pub fn used(&self) -> u64 {
        // In this order: what is taken in between counts as memory rather than below zero.
        let metadata = self.metadata();
        self.total().saturating_sub(metadata)
    }

    /// Bytes in use by what is known about tensors.
    pub fn metadata(&self) -> u64 {
        self.metadata.load(Ordering::SeqCst)
    }

    /// Both.
    pub(crate) fn total(&self) -> u64 {
        self.used.load(Ordering::SeqCst)
    }

    /// What is known about a tensor whose name and producer have `text` bytes together, in bytes.
    pub(crate) fn metadata_of(&self, text: usize, dimensions: usize) -> u64 {
        match self.metadata_each {
            0 => 0,
            each => each + TEXT_COPIES * text as u64 + DIMENSION_BYTES * dimensions as u64,
        }
    }

    /// The most that tensors' memory took at a time, in bytes.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::SeqCst)
    }

    /// Takes `bytes` if they fit; the charge gives them back when it is dropped.
    pub fn take(self: &Arc<Self>, bytes: u64) -> Option<Arc<Charge>> {
        self.fits(bytes).then(|| self.charged(bytes))
    }

    /// Takes `bytes` whether they fit or not.
    pub(crate) fn take_over(self: &Arc<Self>, bytes: u64) -> Arc<Charge> {
        self.used.fetch_add(bytes, Ordering::SeqCst);
        self.charged(bytes)
    }

    /// Takes `bytes` for what is known about one more tensor of a segment, if they fit.
    pub(crate) fn take_metadata(&self, segment: &Arc<Charge>, bytes: u64) -> Option<TensorCharge> {
        self.fits(bytes).then(|| self.metered(segment, bytes))
    }

    /// The same, whether they fit or not.
    pub(crate) fn take_over_metadata(&self, segment: &Arc<Charge>, bytes: u64) -> TensorCharge {
        self.used.fetch_add(bytes, Ordering::SeqCst);
        self.metered(segment, bytes)
    }

    /// Takes `bytes` for what is known about tensors without memory, whether they fit or not.
    pub(crate) fn take_over_spilled(self: &Arc<Self>, bytes: u64) -> SpilledCharge {
        self.used.fetch_add(bytes, Ordering::SeqCst);
        self.metadata.fetch_add(bytes, Ordering::SeqCst);
        SpilledCharge { bytes, budget: Arc::clone(self) }
    }

    /// Takes `bytes` if they fit.
    fn fits(&self, bytes: u64) -> bool {
        let fits = |used: u64| used.checked_add(bytes).filter(|&total| total <= self.max());
        self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fits).is_ok()
    }

    fn charged(self: &Arc<Self>, bytes: u64) -> Arc<Charge> {
        self.peak.fetch_max(self.used(), Ordering::SeqCst);
        let (open, left) = (AtomicUsize::new(0), AtomicBool::new(false));
        Arc::new(Charge { bytes, open, left, budget: Arc::clone(self) })
    }

    fn metered(&self, segment: &Arc<Charge>, metadata: u64) -> TensorCharge {
        self.metadata.fetch_add(metadata, Ordering::SeqCst);
        TensorCharge { segment: Arc::clone(segment), metadata, left: AtomicBool::new(false) }
    }

    /// Whether `bytes` will fit without anybody's doing once what is leaving has left, and `freed` more.
    pub(crate) fn will_fit(&self, bytes: u64, freed: u64) -> bool {
        // In this order: a charge that goes in between is then missed by neither.
        let leaving = self.leaving.load(Ordering::SeqCst);
        let staying = self.total().saturating_sub(leaving).saturating_sub(freed);
        staying.checked_add(bytes).is_some_and(|total| total <= self.max())
    }
}

/// Bytes taken from a budget, given back on drop. All tensors of one segment share one.
#[derive(Debug)]
pub struct Charge {
    pub(crate) bytes: u64,
    /// Tensors of the segment that are not closed.
    open: AtomicUsize,
    /// Whether the bytes were counted as leaving.
    left: AtomicBool,
    budget: Arc<Budget>,
}

impl Charge {
    /// The budget that it was taken from.
    pub(crate) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// How many bytes it took.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds the bytes of another charge of the same budget. `None`, and they are given back, when others share one of the two.
    pub(crate) fn join(self: Arc<Self>, more: Arc<Self>) -> Option<Arc<Self>> {
        let mut joined = self;
        let mut more = Arc::into_inner(more)?;
        let bytes = &mut Arc::get_mut(&mut joined)?.bytes;
        *bytes += std::mem::take(&mut more.bytes);
        Some(joined)
    }

    /// How many tensors of the segment, or other users of its memory, there are.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    /// One more tensor of the segment.
    pub(crate) fn opened(&self) {
        self.open.fetch_add(1, Ordering::SeqCst);
    }

    /// One of its tensors takes no lease any more; with the last the bytes are leaving.
    pub(crate) fn closed(&self) {
        if self.open.fetch_sub(1, Ordering::SeqCst) == 1 && !self.left.swap(true, Ordering::SeqCst) {
            self.budget.leaving.fetch_add(self.bytes, Ordering::SeqCst);
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::SeqCst);
        if *self.left.get_mut() {
            self.budget.leaving.fetch_sub(self.bytes, Ordering::SeqCst);
        }
    }
}

/// What one tensor takes from a budget: its segment's bytes, which all tensors of the segment share, and what is known about
/// it, which is given back on drop.
#[derive(Debug)]
pub struct TensorCharge {
    segment: Arc<Charge>,
    /// What is known about it, in bytes.
    metadata: u64,
    /// Whether that was counted as leaving.
    left: AtomicBool,
}

impl From<Arc<Charge>> for TensorCharge {
    /// Of a tensor about which nothing is counted.
    fn from(segment: Arc<Charge>) -> Self {
        Self { segment, metadata: 0, left: AtomicBool::new(false) }
    }
}

impl TensorCharge {
    /// What its segment takes.
    pub(crate) fn segment(&self) -> &Arc<Charge> {
        &self.segment
    }

    /// What is known about it, in bytes.
    pub(crate) fn metadata(&self) -> u64 {
        self.metadata
    }

    /// The tensor takes no lease any more: what is known about it is leaving.
    pub(crate) fn closed(&self) {
        self.segment.closed();
        if !self.left.swap(true, Ordering::SeqCst) {
            self.segment.budget.metadata_budget().leaving.fetch_add(self.metadata(), Ordering::SeqCst);
        }
    }
}

impl Drop for TensorCharge {
    fn drop(&mut self) {
        let (budget, bytes) = (self.segment.budget.metadata_budget(), self.metadata());
        budget.metadata.fetch_sub(bytes, Ordering::SeqCst);
        budget.used.fetch_sub(bytes, Ordering::SeqCst);
        if *self.left.get_mut() {
            budget.leaving.fetch_sub(bytes, Ordering::SeqCst);
        }
    }
}

/// What is known about tensors whose memory is elsewhere, given back on drop.
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
    fn takes_and_gives_back() {
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
    fn charges_are_joined_while_nobody_shares_them() {
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
    fn what_is_leaving_will_make_room() {
        let budget = Budget::new(100);
        let charge = budget.take(60).unwrap();
        charge.opened();
        charge.opened();
        charge.closed();
        assert!(!budget.will_fit(41, 0) && budget.will_fit(41, 60), "one tensor of the segment is open");
        charge.closed();
        assert!(budget.will_fit(100, 0) && !budget.will_fit(101, 0));
        assert!(budget.take(41).is_none(), "it has not left yet");
        drop(charge);
        assert!(budget.will_fit(100, 0) && budget.take(100).is_some());
    }

    #[test]
    fn what_is_known_about_tensors_counts_and_leaves_with_them() {
        let budget = Budget::with_metadata(100, 10);
        let segment = budget.take(70).unwrap();
        let charges: Vec<TensorCharge> = (0..3).map(|_| budget.take_metadata(&segment, 10).unwrap()).collect();
        assert_eq!((budget.used(), budget.metadata(), budget.peak()), (70, 30, 70));
        assert!(budget.take(1).is_none() && budget.take_metadata(&segment, 10).is_none());
        let spilled = budget.take_over_spilled(20);
        assert_eq!((budget.used(), budget.metadata(), budget.total()), (70, 50, 120));
        drop(spilled);
        charges.iter().for_each(|_| segment.opened());
        charges[0].closed();
        assert!(budget.will_fit(10, 0) && !budget.will_fit(11, 0), "one tensor of the segment is leaving");
        charges[1..].iter().for_each(TensorCharge::closed);
        assert!(budget.will_fit(100, 0));
        drop((charges, segment));
        assert_eq!((budget.used(), budget.metadata(), budget.total()), (0, 0, 0));
        assert!(budget.take(100).is_some());
    }
}
