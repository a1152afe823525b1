//! Listing and watching names in a store of this process.

use crate::backend::Budget;
use crate::names::{ChangesFuture, Unqueued};
use crate::{
    ChangePosition, EmbeddedStore, EveryVersion, Holder, Lease, NameChanges, NameFilter, NameStore, NamedVersion,
    TensorId, TensorStore,
};
use cotensor_core::Result;
use std::sync::Arc;
use std::time::Duration;

impl EmbeddedStore {
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
        let queue = self.queues.open(every, holder.clone(), own);
        if queue.every().existing {
            // A queue drops what it has no room for.
            let mut unqueued = Unqueued::default();
            self.names.each_newest(&queue.every().filter, |name, id, record| {
                queue.add_existing(name, id, record, &mut unqueued);
            });
        }
        Ok(queue.start())
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

impl NameStore for EmbeddedStore {
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
        Ok(block_on(self.watch_names(filter.clone(), since), wait, keep_waiting))
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
        Ok(block_on(future, wait, keep_waiting))
    }

    fn end_versions(&self, position: ChangePosition) {
        self.queues.end(position.log);
    }
}

/// Polls `future` on this thread until it is ready or the wait ends.
#[cfg(not(target_family = "wasm"))]
fn block_on(mut future: ChangesFuture, wait: Duration, keep_waiting: &dyn Fn() -> bool) -> NameChanges {
    use std::future::Future;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, Wake};
    use std::thread::Thread;
    use std::time::Instant;

    /// The longest time between two calls of `keep_waiting`.
    const CHECK_INTERVAL: Duration = Duration::from_millis(50);

    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let waker = Arc::new(Unpark(std::thread::current())).into();
    let end = Instant::now().checked_add(wait);
    loop {
        if let Poll::Ready(changes) = Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
            return changes;
        }
        let left = end.map_or(CHECK_INTERVAL, |end| end.saturating_duration_since(Instant::now()));
        if left.is_zero() || !keep_waiting() {
            return future.nothing();
        }
        std::thread::park_timeout(left.min(CHECK_INTERVAL));
    }
}

/// With one thread, nothing changes during a wait.
#[cfg(target_family = "wasm")]
fn block_on(mut future: ChangesFuture, _: Duration, _: &dyn Fn() -> bool) -> NameChanges {
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};
    match Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(changes) => changes,
        Poll::Pending => future.nothing(),
    }
}
