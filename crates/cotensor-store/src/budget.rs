//! The memory budget: counted when memory is reserved, given back when its last user is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes in use against the most that may be.
#[derive(Debug)]
pub(crate) struct Budget {
    used: AtomicU64,
    peak: AtomicU64,
    pub(crate) max: u64,
}

impl Budget {
    pub(crate) fn new(max: u64) -> Arc<Self> {
        Arc::new(Self { used: AtomicU64::new(0), peak: AtomicU64::new(0), max })
    }

    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::SeqCst)
    }

    pub(crate) fn peak(&self) -> u64 {
        self.peak.load(Ordering::SeqCst)
    }

    /// Takes `bytes` if they fit.
    pub(crate) fn take(self: &Arc<Self>, bytes: u64) -> Option<Arc<Charge>> {
        let fits = |used: u64| used.checked_add(bytes).filter(|&total| total <= self.max);
        let before = self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fits).ok()?;
        self.peak.fetch_max(before + bytes, Ordering::SeqCst);
        Some(Arc::new(Charge { bytes, budget: Arc::clone(self) }))
    }
}

/// Bytes taken from a budget, given back on drop. All tensors of one segment share one.
#[derive(Debug)]
pub(crate) struct Charge {
    pub(crate) bytes: u64,
    budget: Arc<Budget>,
}

impl Drop for Charge {
    fn drop(&mut self) {
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
}
