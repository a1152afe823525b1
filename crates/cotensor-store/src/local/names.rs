//! Listing and watching names in a store of this process.

use crate::backend::Budget;
use crate::local::LocalStore;
use crate::names::ChangesFuture;
use crate::{
    ChangePosition, EveryVersion, Holder, Lease, NameChanges, NameFilter, NameStore, NamedVersion, TensorId,
    TensorStore,
};
use cotensor_core::Result;
use std::sync::Arc;
use std::time::Duration;

impl LocalStore {
    /// The changes of the names that `filter` selects after `since`, as soon as there is one. Ready at once without
    /// `since`, with the current position.
    pub fn watch_names(&self, filter: NameFilter, since: Option<ChangePosition>) -> ChangesFuture {
        self.changes.wait(filter, since)
    }

    /// Opens a queue of every version, whose leases are those of `holder` and charged to `own`. Returns the position before its first change.
    /// [`end_versions`](NameStore::end_versions) ends it.
    ///
    /// # Errors
    /// `Invalid` for limits out of their ranges.
    pub fn open_versions(
        &self,
        every: EveryVersion,
        holder: &Holder,
        own: Option<Arc<Budget>>,
    ) -> Result<ChangePosition> {
        every.check()?;
        Ok(self.queues.open(every, holder.clone(), own, &self.names, self.clock.recent()))
    }

    /// The oldest lease of the queue of these positions, which gives it up: its reader needs the bytes for another lease.
    pub fn give_up_version(&self, position: ChangePosition) -> Option<Lease> {
        self.queues.give_up_oldest(position.log)
    }

    /// The changes of a queue after `since`, as soon as there is one. Ready at once, and incomplete, when the queue has ended.
    pub fn await_versions(&self, since: ChangePosition) -> ChangesFuture {
        match self.queues.find(since.log) {
            Some(queue) => ChangesFuture::of_queue(queue, since.number),
            None => ChangesFuture::known(since, true),
        }
    }
}

impl NameStore for LocalStore {
    fn find_name(&self, name: &str) -> Result<Option<TensorId>> {
        Ok(self.names.newest(name))
    }

    fn names(&self, prefix: &str) -> Result<Vec<NamedVersion>> {
        let mut names = Vec::new();
        self.names.each(prefix, |name, id| names.push(NamedVersion { name: name.to_owned(), id }));
        names.sort_unstable();
        Ok(names)
    }

    fn count_names(&self, prefix: &str) -> Result<usize> {
        let mut count = 0;
        self.names.each(prefix, |_, _| count += 1);
        Ok(count)
    }

    fn changes(
        &self,
        filter: &NameFilter,
        since: Option<ChangePosition>,
        wait: Duration,
        keep_waiting: &dyn Fn() -> bool,
    ) -> Result<NameChanges> {
        Ok(self.watch_names(filter.clone(), since).block_on(wait, keep_waiting))
    }

    fn versions(
        &self,
        every: &EveryVersion,
        since: Option<ChangePosition>,
        wait: Duration,
        keep_waiting: &dyn Fn() -> bool,
    ) -> Result<NameChanges> {
        let future = match since {
            Some(since) => self.await_versions(since),
            None => ChangesFuture::known(self.open_versions(every.clone(), &self.holder("watch"), None)?, false),
        };
        Ok(future.block_on(wait, keep_waiting))
    }

    fn end_versions(&self, position: ChangePosition) {
        self.queues.end(position.log);
    }
}
