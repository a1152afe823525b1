//! The memory budget: counted when memory is reserved, given back when its last user is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Bytes in use against the most that may be.
#[derive(Debug)]
pub struct Budget {
    used: AtomicU64,
    /// Of these, bytes whose tensors are all closed: they come back as soon as whoever touched one last lets go.
    leaving: AtomicU64,
    peak: AtomicU64,
    max: AtomicU64,
}

impl Budget {
    /// A budget of `max` bytes; `u64::MAX` is no limit.
    pub fn new(max: u64) -> Arc<Self> {
        Arc::new(Self { used: AtomicU64::new(0), leaving: AtomicU64::new(0), peak: AtomicU64::new(0), max: max.into() })
    }

    /// The most bytes that may be in use.
    pub fn max(&self) -> u64 {
        self.max.load(Ordering::SeqCst)
    }

    /// Changes that. What is in use already stays; nothing more fits until enough of it is gone.
    pub fn set_max(&self, max: u64) {
        self.max.store(max, Ordering::SeqCst);
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::SeqCst)
    }

    /// The most that were in use at a time, in bytes.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::SeqCst)
    }

    /// Takes `bytes` if they fit; the charge gives them back when it is dropped.
    pub fn take(self: &Arc<Self>, bytes: u64) -> Option<Arc<Charge>> {
        let fits = |used: u64| used.checked_add(bytes).filter(|&total| total <= self.max());
        let before = self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fits).ok()?;
        Some(self.charged(before, bytes))
    }

    /// Takes `bytes` whether they fit or not.
    pub(crate) fn take_over(self: &Arc<Self>, bytes: u64) -> Arc<Charge> {
        self.charged(self.used.fetch_add(bytes, Ordering::SeqCst), bytes)
    }

    fn charged(self: &Arc<Self>, before: u64, bytes: u64) -> Arc<Charge> {
        self.peak.fetch_max(before + bytes, Ordering::SeqCst);
        let (open, left) = (AtomicUsize::new(0), AtomicBool::new(false));
        Arc::new(Charge { bytes, open, left, budget: Arc::clone(self) })
    }

    /// Whether `bytes` will fit without anybody's doing once what is leaving has left, and `freed` more.
    pub(crate) fn will_fit(&self, bytes: u64, freed: u64) -> bool {
        // In this order: a charge that goes in between is then missed by neither.
        let leaving = self.leaving.load(Ordering::SeqCst);
        let staying = self.used().saturating_sub(leaving).saturating_sub(freed);
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
    /// How many bytes it took.
    pub fn bytes(&self) -> u64 {
        self.bytes
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
}
