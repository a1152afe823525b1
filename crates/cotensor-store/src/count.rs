//! The lease count of one tensor: the only place that decides whether a tensor may go.

use crate::sync::{Mutex, lock};

/// Leases by holder. Once closed, which only an unleased count can be, it never opens to a lease again
/// unless it is [reopened](LeaseCount::reopen) by whoever closed it.
///
/// Invariant L1: `closed` implies that no holder has a lease. Invariant L2: a holder is listed only while its count is positive.
#[derive(Debug)]
pub struct LeaseCount(Mutex<State>);

#[derive(Debug)]
struct State {
    closed: bool,
    /// Holder id and its leases; a tensor has few holders, so a list beats a map.
    holders: Vec<(u32, u32)>,
}

/// The outcome of releasing a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// Others are left.
    StillLeased,
    /// That was the last one.
    Last,
    /// The holder had none.
    NotHeld,
}

impl Default for LeaseCount {
    fn default() -> Self {
        Self(Mutex::new(State { closed: false, holders: Vec::new() }))
    }
}

impl LeaseCount {
    /// Adds a lease for `holder`; false when closed.
    pub fn acquire(&self, holder: u32) -> bool {
        let mut state = lock(&self.0);
        if state.closed {
            return false;
        }
        match state.holders.iter_mut().find(|(id, _)| *id == holder) {
            Some((_, count)) => *count += 1,
            None => state.holders.push((holder, 1)),
        }
        true
    }

    /// Takes one of `holder`'s leases back.
    pub fn release(&self, holder: u32) -> Released {
        let mut state = lock(&self.0);
        let Some(index) = state.holders.iter().position(|(id, _)| *id == holder) else {
            return Released::NotHeld;
        };
        state.holders[index].1 -= 1;
        if state.holders[index].1 == 0 {
            state.holders.swap_remove(index);
        }
        if state.holders.is_empty() { Released::Last } else { Released::StillLeased }
    }

    /// Closes the count if nobody has a lease; true exactly for the caller that closed it.
    pub fn close(&self) -> bool {
        let mut state = lock(&self.0);
        let closes = !state.closed && state.holders.is_empty();
        state.closed |= closes;
        closes
    }

    /// Undoes [`close`](LeaseCount::close).
    pub fn reopen(&self) {
        lock(&self.0).closed = false;
    }

    /// Holder ids with their leases.
    pub fn holders(&self) -> Vec<(u32, u32)> {
        lock(&self.0).holders.clone()
    }

    /// All leases.
    pub fn total(&self) -> u64 {
        lock(&self.0).holders.iter().map(|(_, count)| u64::from(*count)).sum()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn counts_per_holder() {
        let count = LeaseCount::default();
        assert!(count.acquire(1) && count.acquire(1) && count.acquire(2));
        assert_eq!(count.release(1), Released::StillLeased);
        assert_eq!(count.release(3), Released::NotHeld);
        assert!(!count.close());
        assert_eq!(count.release(2), Released::StillLeased);
        assert_eq!(count.release(2), Released::NotHeld);
        assert_eq!(count.release(1), Released::Last);
        assert!(count.close());
        assert!(!count.close());
        assert!(!count.acquire(1));
        count.reopen();
        assert!(count.acquire(1));
    }
}
