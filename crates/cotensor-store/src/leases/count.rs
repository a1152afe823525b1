//! The lease count of one tensor. It alone decides whether a tensor may be freed.

use crate::Holder;
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
    /// Lookups that [found](LeaseCount::acquire_on_lookup) the tensor.
    hits: u64,
}

/// Holders with their numbers of leases. Most tensors have one holder, for which nothing is allocated. Few have many,
/// so a list is faster than a map.
#[derive(Debug)]
enum ByHolder {
    None,
    One(Holder, u32),
    #[allow(clippy::box_collection, reason = "one word instead of three, in every record")]
    Many(Box<Vec<(Holder, u32)>>),
}

impl ByHolder {
    fn iter(&self) -> impl Iterator<Item = (&Holder, u32)> {
        let (one, many) = match self {
            Self::None => (None, &[][..]),
            Self::One(holder, count) => (Some((holder, *count)), &[][..]),
            Self::Many(many) => (None, &many[..]),
        };
        one.into_iter().chain(many.iter().map(|(holder, count)| (holder, *count)))
    }

    fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    fn add(&mut self, holder: &Holder) {
        let added = || (holder.clone(), 1);
        match self {
            Self::None => *self = Self::One(holder.clone(), 1),
            Self::One(known, count) if known == holder => *count += 1,
            Self::One(known, count) => *self = Self::Many(Box::new(vec![(known.clone(), *count), added()])),
            Self::Many(many) => match many.iter_mut().find(|(known, _)| known == holder) {
                Some((_, count)) => *count += 1,
                None => many.push(added()),
            },
        }
    }

    /// Removes one lease of `holder`; false when it has none.
    fn release(&mut self, holder: &Holder) -> bool {
        match self {
            Self::One(known, count) if known == holder => {
                *count -= 1;
                if *count == 0 {
                    *self = Self::None;
                }
            }
            Self::Many(many) => {
                let Some(index) = many.iter().position(|(known, _)| known == holder) else { return false };
                many[index].1 -= 1;
                if many[index].1 == 0 {
                    many.swap_remove(index);
                }
                if many.len() == 1
                    && let Some((holder, count)) = many.pop()
                {
                    *self = Self::One(holder, count);
                }
            }
            Self::None | Self::One(..) => return false,
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
    pub(crate) fn acquire(&self, holder: &Holder) -> bool {
        self.add(holder, 0)
    }

    /// As [`acquire`](LeaseCount::acquire) for a lookup, which counts as a hit.
    pub(crate) fn acquire_on_lookup(&self, holder: &Holder) -> bool {
        self.add(holder, 1)
    }

    /// The number of lookups that found the tensor.
    pub(crate) fn hits(&self) -> u64 {
        lock(&self.0).hits
    }

    fn add(&self, holder: &Holder, hits: u64) -> bool {
        let mut state = lock(&self.0);
        if state.closed {
            return false;
        }
        state.holders.add(holder);
        state.hits += hits;
        true
    }

    /// Removes one lease of `holder`.
    pub(crate) fn release(&self, holder: &Holder) -> Released {
        let mut state = lock(&self.0);
        match state.holders.release(holder) {
            false => Released::NotHeld,
            true if state.holders.is_empty() => Released::Last,
            true => Released::StillLeased,
        }
    }

    /// Closes the count if it has no lease; true for the one caller that closed it.
    pub(crate) fn close(&self) -> bool {
        Self::close_all(&[self])
    }

    /// Closes all of `counts` at once, or none, so that no thread sees a part of them closed. Callers whose counts
    /// overlap pass them in the same order. A count that is passed twice deadlocks.
    pub(crate) fn close_all(counts: &[&LeaseCount]) -> bool {
        let mut states: Vec<_> = counts.iter().map(|count| lock(&count.0)).collect();
        let closes = states.iter().all(|state| !state.closed && state.holders.is_empty());
        if closes {
            states.iter_mut().for_each(|state| state.closed = true);
        }
        closes
    }

    /// Whether it refuses leases.
    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.0).closed
    }

    /// Holders with their numbers of leases.
    pub(crate) fn holders(&self) -> Vec<(Holder, u32)> {
        lock(&self.0).holders.iter().map(|(holder, count)| (holder.clone(), count)).collect()
    }

    /// Whether nothing leases the tensor.
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.0).holders.is_empty()
    }

    /// The number of leases.
    pub(crate) fn total(&self) -> u64 {
        lock(&self.0).holders.iter().map(|(_, count)| u64::from(count)).sum()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn holder(number: u32) -> Holder {
        Holder::new(&number.to_string())
    }

    #[test]
    fn leases_are_counted_per_holder() {
        let count = LeaseCount::default();
        assert!(count.acquire(&holder(1)) && count.acquire(&holder(1)) && count.acquire(&holder(2)));
        assert_eq!(count.release(&holder(1)), Released::StillLeased);
        assert_eq!(count.release(&holder(3)), Released::NotHeld);
        assert!(!count.close());
        assert_eq!(count.release(&holder(2)), Released::StillLeased);
        assert_eq!(count.release(&holder(2)), Released::NotHeld);
        assert_eq!(count.release(&holder(1)), Released::Last);
        assert!(count.acquire_on_lookup(&holder(1)));
        assert_eq!(count.release(&holder(1)), Released::Last);
        assert!(count.close());
        assert!(!count.close());
        assert!(!count.acquire(&holder(1)) && !count.acquire_on_lookup(&holder(1)));
        assert_eq!(count.hits(), 1);
    }

    #[test]
    fn holders_release_in_any_order() {
        let count = LeaseCount::default();
        for number in [1, 2, 3, 2] {
            assert!(count.acquire(&holder(number)));
        }
        assert_eq!((count.holders(), count.total()), (vec![(holder(1), 1), (holder(2), 2), (holder(3), 1)], 4));
        assert_eq!([1, 4, 2, 3, 3].map(|number| count.release(&holder(number))), {
            use Released::{NotHeld, StillLeased};
            [StillLeased, NotHeld, StillLeased, StillLeased, NotHeld]
        });
        assert_eq!((count.holders(), count.release(&holder(2))), (vec![(holder(2), 1)], Released::Last));
        assert!(count.holders().is_empty() && count.acquire(&holder(9)) && count.acquire(&holder(8)));
        assert_eq!((count.release(&holder(9)), count.release(&holder(8))), (Released::StillLeased, Released::Last));
        assert!(count.close());
    }

    #[test]
    fn close_all_closes_every_count_or_none() {
        let counts = [LeaseCount::default(), LeaseCount::default()];
        assert!(counts[1].acquire(&holder(1)));
        assert!(!LeaseCount::close_all(&[&counts[0], &counts[1]]));
        assert!(counts[0].acquire(&holder(1)), "none was closed");
        counts.iter().for_each(|count| assert_eq!(count.release(&holder(1)), Released::Last));
        assert!(LeaseCount::close_all(&[&counts[0], &counts[1]]));
        assert!(!counts[0].acquire(&holder(1)) && !counts[1].acquire(&holder(1)));
    }
}
