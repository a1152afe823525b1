//! The lease count of one tensor. It alone decides whether a tensor may be freed.

use crate::sync::{Mutex, lock};

/// The leases of a tensor by holder. A count without leases can be closed; a closed count refuses leases.
///
/// Invariant L1: a closed count has no lease. Invariant L2: a holder is listed only while its count is positive.
/// Invariant L3: only [`close_all`](LeaseCount::close_all) locks more than one count, in the order of its argument.
#[derive(Debug)]
pub(crate) struct LeaseCount(Mutex<Leases>);

#[derive(Debug)]
struct Leases {
    closed: bool,
    holders: ByHolder,
    /// Lookups that [found](LeaseCount::find) the tensor.
    hits: u64,
}

/// Holder ids with their numbers of leases. Most tensors have one holder, for which nothing is allocated. Few have many,
/// so a list is faster than a map.
#[derive(Debug)]
enum ByHolder {
    None,
    One([(u32, u32); 1]),
    #[allow(clippy::box_collection, reason = "two words instead of four, in every record")]
    Many(Box<Vec<(u32, u32)>>),
}

impl ByHolder {
    fn as_slice(&self) -> &[(u32, u32)] {
        match self {
            Self::None => &[],
            Self::One(one) => one,
            Self::Many(many) => many,
        }
    }

    fn add(&mut self, holder: u32) {
        let held = match self {
            Self::None => &mut [][..],
            Self::One(one) => one,
            Self::Many(many) => many,
        };
        if let Some((_, count)) = held.iter_mut().find(|(id, _)| *id == holder) {
            *count += 1;
            return;
        }
        match self {
            Self::None => *self = Self::One([(holder, 1)]),
            Self::One([one]) => *self = Self::Many(Box::new(vec![*one, (holder, 1)])),
            Self::Many(many) => many.push((holder, 1)),
        }
    }

    /// Removes one lease of `holder`; false when it has none.
    fn release(&mut self, holder: u32) -> bool {
        match self {
            Self::One([(id, count)]) if *id == holder => {
                *count -= 1;
                if *count == 0 {
                    *self = Self::None;
                }
            }
            Self::Many(many) => {
                let Some(index) = many.iter().position(|(id, _)| *id == holder) else { return false };
                many[index].1 -= 1;
                if many[index].1 == 0 {
                    many.swap_remove(index);
                }
                if let [one] = many[..] {
                    *self = Self::One([one]);
                }
            }
            Self::None | Self::One(_) => return false,
        }
        true
    }
}

/// The outcome of releasing a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Released {
    /// Other leases are left.
    StillLeased,
    /// It was the last lease.
    Last,
    /// The holder had no lease.
    NotHeld,
}

impl Default for LeaseCount {
    fn default() -> Self {
        Self(Mutex::new(Leases { closed: false, holders: ByHolder::None, hits: 0 }))
    }
}

impl LeaseCount {
    /// Adds a lease of `holder`; false when closed.
    pub(crate) fn acquire(&self, holder: u32) -> bool {
        self.add(holder, 0)
    }

    /// As [`acquire`](LeaseCount::acquire) for a lookup, which counts as a hit.
    pub(crate) fn find(&self, holder: u32) -> bool {
        self.add(holder, 1)
    }

    /// The number of lookups that found the tensor.
    pub(crate) fn hits(&self) -> u64 {
        lock(&self.0).hits
    }

    fn add(&self, holder: u32, hits: u64) -> bool {
        let mut state = lock(&self.0);
        if state.closed {
            return false;
        }
        state.holders.add(holder);
        state.hits += hits;
        true
    }

    /// Removes one lease of `holder`.
    pub(crate) fn release(&self, holder: u32) -> Released {
        let mut state = lock(&self.0);
        match state.holders.release(holder) {
            false => Released::NotHeld,
            true if state.holders.as_slice().is_empty() => Released::Last,
            true => Released::StillLeased,
        }
    }

    /// Closes the count if it has no lease; true for the one caller that closed it.
    pub(crate) fn close(&self) -> bool {
        Self::close_all(&[self])
    }

    /// Closes all of `counts` at once, or none, so that no thread sees a part of them closed. Callers whose counts overlap
    /// pass them in the same order. A count that is passed twice deadlocks.
    pub(crate) fn close_all(counts: &[&LeaseCount]) -> bool {
        let mut states: Vec<_> = counts.iter().map(|count| lock(&count.0)).collect();
        let closes = states.iter().all(|state| !state.closed && state.holders.as_slice().is_empty());
        if closes {
            states.iter_mut().for_each(|state| state.closed = true);
        }
        closes
    }

    /// Holder ids with their numbers of leases.
    pub(crate) fn holders(&self) -> Vec<(u32, u32)> {
        lock(&self.0).holders.as_slice().to_vec()
    }

    /// The number of leases.
    pub(crate) fn total(&self) -> u64 {
        lock(&self.0).holders.as_slice().iter().map(|(_, count)| u64::from(*count)).sum()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn leases_are_counted_per_holder() {
        let count = LeaseCount::default();
        assert!(count.acquire(1) && count.acquire(1) && count.acquire(2));
        assert_eq!(count.release(1), Released::StillLeased);
        assert_eq!(count.release(3), Released::NotHeld);
        assert!(!count.close());
        assert_eq!(count.release(2), Released::StillLeased);
        assert_eq!(count.release(2), Released::NotHeld);
        assert_eq!(count.release(1), Released::Last);
        assert!(count.find(1));
        assert_eq!(count.release(1), Released::Last);
        assert!(count.close());
        assert!(!count.close());
        assert!(!count.acquire(1) && !count.find(1));
        assert_eq!(count.hits(), 1);
    }

    #[test]
    fn holders_release_in_any_order() {
        let count = LeaseCount::default();
        for holder in [1, 2, 3, 2] {
            assert!(count.acquire(holder));
        }
        assert_eq!((count.holders(), count.total()), (vec![(1, 1), (2, 2), (3, 1)], 4));
        assert_eq!([1, 4, 2, 3, 3].map(|holder| count.release(holder)), {
            use Released::{NotHeld, StillLeased};
            [StillLeased, NotHeld, StillLeased, StillLeased, NotHeld]
        });
        assert_eq!((count.holders(), count.release(2)), (vec![(2, 1)], Released::Last));
        assert!(count.holders().is_empty() && count.acquire(9) && count.acquire(8));
        assert_eq!((count.release(9), count.release(8)), (Released::StillLeased, Released::Last));
        assert!(count.close());
    }

    #[test]
    fn close_all_closes_every_count_or_none() {
        let counts = [LeaseCount::default(), LeaseCount::default()];
        assert!(counts[1].acquire(1));
        assert!(!LeaseCount::close_all(&[&counts[0], &counts[1]]));
        assert!(counts[0].acquire(1), "none was closed");
        counts.iter().for_each(|count| assert_eq!(count.release(1), Released::Last));
        assert!(LeaseCount::close_all(&[&counts[0], &counts[1]]));
        assert!(!counts[0].acquire(1) && !counts[1].acquire(1));
    }
}
