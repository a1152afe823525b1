//! Freeing tensors that had no lease for their time.

use crate::TensorId;
use crate::local::LocalStore;
use std::sync::Arc;
use std::time::Duration;

impl LocalStore {
    /// Frees the tensors that have been without leases for the time of their [`keep_for`](crate::TensorSpec::keep_for), and returns the time
    /// until the next one. Publishing does so too; a store whose tensors have to be freed at their time calls this then.
    pub fn free_due(&self) -> Option<Duration> {
        let now = self.clock.now();
        for (id, due) in self.ages.take(now) {
            match self.names.by_id(id, |record| Some(Arc::clone(record))) {
                Some(record) if record.close() => self.free_closed(&[record]),
                // Another thread spills or frees it at the moment.
                Some(record) if record.is_closed() => self.ages.put_back(id, due),
                // Leased again: the end of the last lease counts.
                Some(_) => {}
                // Spilled, unless it was freed or restored meanwhile.
                None => drop(self.remove_if(&due.name, |entry| entry.spilled_id() == Some(id))),
            }
        }
        self.ages.next().map(|at| at.saturating_sub(now))
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
    use crate::backend::LeaseBackend;
    use crate::{LocalStore, ManualClock, MemoryControl, Retention, StoreReports, TensorSpec, TensorStore};
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

    #[test]
    fn versions_that_leave_the_store_leave_the_ages() {
        let store = LocalStore::builder().small().max_memory_bytes(400).build();
        let holder = store.holder("h");
        let put = |name: &str| store.reserve(spec(name, Some(AGE)), &holder).unwrap().publish().unwrap();
        for _ in 0..100 {
            drop(put("frame"));
        }
        assert_eq!(store.ages.len(), 1, "99 versions were superseded");
        // Superseded while it is leased, after it had no lease for a time.
        let leased = store.get("frame", &holder).unwrap();
        drop(put("frame"));
        assert_eq!(store.ages.len(), 2);
        drop(leased);
        assert_eq!(store.ages.len(), 1);
        store.remove("frame").unwrap();
        assert_eq!(store.ages.len(), 0);
        for number in 0..300 {
            drop(put(&number.to_string()));
        }
        assert_eq!((store.ages.len(), store.stats().evictions), (100, 200));
        store.optimize();
        assert_eq!(store.ages.len(), 0);
    }

    /// A thread drops the last lease, and calls the backend after another thread has freed the tensor.
    #[test]
    fn lease_that_ends_late_leaves_no_age() {
        let store = LocalStore::builder().build();
        let holder = store.holder("h");
        let lease = store.reserve(spec("x", Some(AGE)), &holder).unwrap().publish().unwrap();
        let record = Arc::clone(&lease.record);
        drop(lease);
        store.remove("x").unwrap();
        store.left(&record);
        assert_eq!(store.ages.len(), 0);
    }

    /// Another thread has closed the tensor in order to spill it.
    #[test]
    fn tensor_that_is_being_spilled_stays_due() {
        let clock = Arc::new(ManualClock::default());
        let store = LocalStore::builder().clock(Arc::clone(&clock) as Arc<_>).build();
        let lease = store.reserve(spec("x", Some(AGE)), &store.holder("h")).unwrap().publish().unwrap();
        let record = Arc::clone(&lease.record);
        drop(lease);
        clock.advance(AGE);
        assert!(record.close());
        assert_eq!(store.free_due(), Some(Duration::ZERO));
        assert_eq!(store.freed_in(record.id), Some(Duration::ZERO));
    }
}
