//! Freeing tensors that had no lease for their time.

use super::ages::Due;
use crate::embedded::EmbeddedStore;
use crate::leases::Record;
use crate::{TensorId, TensorSpec, TensorStore};
use cotensor_core::sync::lock;
use std::sync::Arc;
use std::time::Duration;

impl EmbeddedStore {
    /// Frees the tensors that have been without leases for the time of their [`keep_for`](crate::TensorSpec::keep_for), and returns the time
    /// until the next one. Publishing does so too; a store whose tensors have to be freed at their time calls this then.
    pub fn free_due(&self) -> Option<Duration> {
        let now = self.clock.now();
        let (due, next) = self.ages.take(now);
        for (id, Due { name, .. }) in due {
            match self.names.by_id(id, |record| Some(Arc::clone(record))) {
                // Leased again: the end of the last lease counts.
                Some(record) if !record.close() => {}
                Some(record) => self.free_closed(&[record]),
                // Spilled, or freed before.
                None => drop(self.remove_version(&name, Some(id))),
            }
        }
        next.map(|at| at.saturating_sub(now))
    }

    /// The time after which a tensor is freed; `None` while it has leases, and without such a time.
    pub fn freed_in(&self, id: TensorId) -> Option<Duration> {
        let at = lock(&self.ages.due).get(&id).map(|due| due.at)?;
        let is_leased = self.names.by_id(id, |record| Some(!record.leases.is_empty()));
        (is_leased != Some(true)).then(|| at.saturating_sub(self.clock.now()))
    }

    /// The time of a tensor begins: its last lease has ended. That of a restored tensor goes on, if no caller has used it since.
    pub(crate) fn count_age(&self, record: &Record) {
        let Some(time) = record.keep_for() else { return };
        let restored = lock(&self.ages.restored).remove(&record.id());
        let since = restored.filter(|_| record.last_used() == record.created()).unwrap_or_else(|| self.clock.now());
        self.ages.set(record.id(), since.saturating_add(time), record.name());
        self.notify(|observer| observer.on_left(record, since));
    }

    /// A tensor that is being restored had no lease since `since`, by a clock that both stores share.
    pub(crate) fn restore_age(&self, id: TensorId, since: Option<Duration>) {
        if let Some(since) = since {
            lock(&self.ages.restored).insert(id, since.min(self.clock.now()));
        }
    }

    /// A spilled tensor comes back: its time goes on, unless it is used.
    pub(crate) fn continue_age(&self, id: TensorId, spec: &TensorSpec) {
        let at = lock(&self.ages.due).get(&id).map(|due| due.at);
        if let (Some(at), Some(time)) = (at, spec.keep_for) {
            self.restore_age(id, Some(at.saturating_sub(time)));
        }
    }

    /// The time of a spilled tensor of a former store goes on, or begins again.
    pub(crate) fn count_age_of_spilled(&self, id: TensorId, spec: &TensorSpec) {
        if let Some(time) = spec.keep_for {
            let now = self.clock.now();
            let since = lock(&self.ages.restored).remove(&id).unwrap_or(now);
            self.ages.set(id, since.saturating_add(time), &spec.name);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::{EmbeddedStore, ManualClock, Retention, TensorSpec, TensorStore};
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
        let store = EmbeddedStore::builder().clock(Arc::clone(&clock) as Arc<_>).build();
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
        let store = EmbeddedStore::builder().clock(Arc::clone(&clock) as Arc<_>).build();
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
