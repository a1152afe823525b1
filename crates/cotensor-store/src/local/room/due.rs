//! Freeing tensors that had no lease for their time.

use crate::local::LocalStore;
use crate::TensorId;
use std::sync::Arc;
use std::time::Duration;

impl LocalStore {
    /// Frees the tensors that have been without leases for the time of their [`keep_for`](crate::TensorSpec::keep_for), and returns the time
    /// until the next one. Publishing does so too; a store whose tensors have to be freed at their time calls this then.
    pub fn free_due(&self) -> Option<Duration> {
        let now = self.clock.now();
        let (due, next) = self.ages.take(now);
        for (id, due) in due {
            match self.names.by_id(id, |record| Some(Arc::clone(record))) {
                // Leased again: the end of the last lease counts.
                Some(record) if !record.close() => {}
                Some(record) => self.free_closed(&[record]),
                // Spilled, unless it was freed or restored meanwhile.
                None => drop(self.remove_if(&due.name, |entry| entry.spilled_id() == Some(id))),
            }
        }
        next.map(|at| at.saturating_sub(now))
    }

    /// The time after which a tensor is freed; `None` while it has leases, and without such a time.
    pub fn freed_in(&self, id: TensorId) -> Option<Duration> {
        let at = self.ages.due(id)?;
        let is_leased = self.names.by_id(id, |record| Some(!record.leases.is_empty()));
        (is_leased != Some(true)).then(|| at.saturating_sub(self.clock.now()))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::{LocalStore, ManualClock, Retention, TensorSpec, TensorStore};
    use cotensor_core::DType;
    use std::sync::Arc;
    use std::time::Duration;

    const AGE: Duration = Duration::from_secs(600);
    const MOMENT: Duration = Duration::from_nanos(1);

    fn spec(name: &str, age: Option<Duration>) -> TensorSpec {
        let retention = Retention::Cached { recompute: Duration::ZERO };
        TensorSpec { retention, keep_for: age, ..TensorSpec::new(name, DType::U8, &[4]) }
    }

    #[test]
    fn tensor_is_freed_when_it_had_no_lease_for_its_time() {
        let clock = Arc::new(ManualClock::default());
        let store = LocalStore::builder().clock(Arc::clone(&clock) as Arc<_>).build();
        let put = |name: &str, age| store.reserve(spec(name, age), &store.holder("h")).unwrap().publish().unwrap();
        let (aged, id) = {
            let lease = put("aged", Some(AGE));
            let id = lease.id();
            (lease, id)
        };
        let other = put("kept", None).id();
        clock.advance(10 * AGE);
        assert_eq!((store.free_due(), store.freed_in(id)), (None, None), "it is leased");
        drop(aged);
        assert_eq!(store.freed_in(id), Some(AGE));
        clock.advance(AGE - MOMENT);
        assert_eq!(store.free_due(), Some(MOMENT));
        // A new lease ends the time, and the next one begins with its end.
        let again = store.get("aged", &store.holder("h")).unwrap();
        assert_eq!(store.freed_in(id), None);
        clock.advance(AGE);
        assert_eq!(store.free_due(), None);
        drop(again);
        clock.advance(AGE - MOMENT);
        store.free_due();
        assert!(store.has(id));
        clock.advance(MOMENT);
        assert_eq!((store.free_due(), store.has(id), store.has(other)), (None, false, true));
        assert!(store.get("aged", &store.holder("h")).is_err());
    }

    #[test]
    fn publishing_frees_what_is_due_and_a_new_version_has_a_time_of_its_own() {
        let clock = Arc::new(ManualClock::default());
        let store = LocalStore::builder().clock(Arc::clone(&clock) as Arc<_>).build();
        let put = |name: &str, age| store.reserve(spec(name, age), &store.holder("h")).unwrap().publish().unwrap();
        let first = put("x", Some(AGE)).id();
        clock.advance(AGE / 2);
        let second = put("x", Some(AGE)).id();
        clock.advance(AGE / 2);
        store.free_due();
        assert!(!store.has(first) && store.has(second));
        clock.advance(AGE);
        drop(put("y", None));
        assert!(!store.has(second));
    }
}
