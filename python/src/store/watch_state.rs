//! What the reader of a watch has seen, and the changes that it has not read.

use cotensor::{Error, ErrorKind, Store};
use cotensor_store::{ChangePosition, EveryVersion, Holder, Lease, NameChange, NameChanges, NameFilter, TensorId};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What is watched, and where.
pub(super) struct Watched {
    pub(super) store: Arc<dyn Store>,
    pub(super) filter: NameFilter,
    /// The queue of a watch of every version.
    pub(super) every: Option<EveryVersion>,
    /// The holder of the versions that the reader gets.
    pub(super) holder: Holder,
    /// The changes that the reader did not get, for other threads.
    pub(super) dropped: AtomicU64,
}

impl Watched {
    fn changes(
        &self,
        since: Option<ChangePosition>,
        wait: Duration,
        keep_waiting: &dyn Fn() -> bool,
    ) -> Result<NameChanges, Error> {
        match &self.every {
            Some(every) => self.store.versions(every, since, wait, keep_waiting),
            None => self.store.changes(&self.filter, since, wait, keep_waiting),
        }
    }

    /// The names that exist, with their newest versions.
    fn list(&self) -> Result<Vec<(String, TensorId)>, Error> {
        Ok(match &self.filter {
            NameFilter::Name(name) => self.store.find_name(name)?.map(|id| (name.clone(), id)).into_iter().collect(),
            NameFilter::Prefix(prefix) => {
                self.store.names(prefix)?.into_iter().map(|named| (named.name, named.id)).collect()
            }
        })
    }
}

/// A change for the reader, with a lease of the version in a watch of every version.
pub(super) struct Next {
    pub(super) change: NameChange,
    pub(super) lease: Option<Lease>,
}

/// What the reader has seen.
pub(super) struct WatchState {
    pub(super) position: ChangePosition,
    /// The newest version of each selected name.
    known: HashMap<String, TensorId>,
    pending: VecDeque<NameChange>,
    /// The changes that the present queue has dropped.
    dropped_by_queue: u64,
    /// Other changes that the reader does not get.
    dropped: u64,
}

impl WatchState {
    /// The names that exist now. With `existing`, they are the first changes.
    ///
    /// # Errors
    /// As [`NameStore`](cotensor_store::NameStore).
    pub(super) fn new(watched: &Watched, existing: bool) -> Result<Self, Error> {
        let open = || watched.changes(None, Duration::ZERO, &|| true).map(|opened| opened.position);
        // The position comes first: a change that follows is seen in the list, or after it.
        let position = if watched.every.is_none() { Some(open()?) } else { None };
        let names = if watched.every.is_some() && existing { Vec::new() } else { watched.list()? };
        // A queue has every change after it was opened, so the list comes first. A queue lists the existing names itself.
        let position = position.map_or_else(open, Ok)?;
        let (known, pending) = Default::default();
        let mut state = Self { position, known, pending, dropped_by_queue: 0, dropped: 0 };
        names.into_iter().for_each(|(name, id)| state.add(NameChange { name, id: Some(id) }));
        if !existing {
            state.pending.clear();
        }
        Ok(state)
    }

    fn dropped(&self) -> u64 {
        self.dropped + self.dropped_by_queue
    }

    /// Adds a change unless it is known. It replaces a change of the same name that is not read yet.
    fn add(&mut self, change: NameChange) {
        if self.know(&change) {
            self.pending.retain(|unread| unread.name != change.name);
            self.pending.push_back(change);
        }
    }

    /// Notes the newest version of a name. False when it is known.
    fn know(&mut self, change: &NameChange) -> bool {
        let before = match change.id {
            Some(id) => self.known.insert(change.name.clone(), id),
            None => self.known.remove(&change.name),
        };
        before != change.id
    }

    /// Applies an answer of the store. `is_closed` says that the watch has ended.
    pub(super) fn apply(&mut self, watched: &Watched, changes: NameChanges, is_closed: bool) -> Result<(), Error> {
        if watched.every.is_some() {
            let applied = self.apply_versions(watched, changes, is_closed);
            watched.dropped.store(self.dropped(), Ordering::SeqCst);
            return applied;
        }
        self.position = changes.position;
        changes.changes.into_iter().for_each(|change| self.add(change));
        if !changes.incomplete {
            return Ok(());
        }
        // Compares the names that exist with those that are known.
        let named = watched.list()?;
        self.missing(&named).into_iter().for_each(|name| self.add(NameChange { name, id: None }));
        named.into_iter().for_each(|(name, id)| self.add(NameChange { name, id: Some(id) }));
        Ok(())
    }

    /// The known names that do not exist any more, in order.
    fn missing(&self, named: &[(String, TensorId)]) -> Vec<String> {
        let found: HashMap<&str, TensorId> = named.iter().map(|(name, id)| (name.as_str(), *id)).collect();
        let mut gone: Vec<String> =
            self.known.keys().filter(|name| !found.contains_key(name.as_str())).cloned().collect();
        gone.sort_unstable();
        gone
    }

    fn apply_versions(&mut self, watched: &Watched, changes: NameChanges, is_closed: bool) -> Result<(), Error> {
        if !changes.incomplete {
            (self.position, self.dropped_by_queue) = (changes.position, changes.dropped);
            for change in changes.changes {
                // After the server was replaced, versions up to the listed one are counted already.
                let is_listed =
                    |known: &TensorId, id: TensorId| known.name_id == id.name_id && id.version <= known.version;
                let is_old =
                    change.id.is_some_and(|id| self.known.get(&change.name).is_some_and(|known| is_listed(known, id)));
                if !is_old {
                    self.know(&change);
                    self.pending.push_back(change);
                }
            }
            return Ok(());
        }
        if is_closed {
            return Ok(());
        }
        // The queue ended with the daemon's server. The newest version of each name is read, those before it are lost.
        (self.dropped, self.dropped_by_queue) = (self.dropped(), 0);
        let reopened = EveryVersion {
            existing: false,
            ..watched.every.clone().unwrap_or_else(|| EveryVersion::new(watched.filter.clone()))
        };
        self.position = watched.store.versions(&reopened, None, Duration::ZERO, &|| true)?.position;
        let named = watched.list()?;
        for name in self.missing(&named) {
            let change = NameChange { name, id: None };
            self.know(&change);
            self.pending.push_back(change);
        }
        for (name, id) in named {
            let seen =
                self.known.get(&name).filter(|known| known.name_id == id.name_id).map_or(0, |known| known.version);
            let change = NameChange { name, id: Some(id) };
            if self.know(&change) {
                self.dropped += id.version.saturating_sub(seen).saturating_sub(1);
                self.pending.push_back(change);
            }
        }
        Ok(())
    }

    /// A change that has arrived, with its version in a watch of every version.
    ///
    /// # Errors
    /// As [`TensorStore::lease`](cotensor_store::TensorStore::lease). The change stays the next one.
    pub(super) fn take(&mut self, watched: &Watched) -> Result<Option<Next>, Error> {
        while let Some(change) = self.pending.front() {
            let lease = match change.id.filter(|_| watched.every.is_some()) {
                Some(id) => match watched.store.lease(id, &watched.holder) {
                    Err(error) if error.kind() == ErrorKind::NotFound => {
                        // The store needed the memory.
                        self.pending.pop_front();
                        self.dropped += 1;
                        watched.dropped.store(self.dropped(), Ordering::SeqCst);
                        continue;
                    }
                    lease => Some(lease?),
                },
                None => None,
            };
            return Ok(self.pending.pop_front().map(|change| Next { change, lease }));
        }
        Ok(None)
    }

    /// The next change; waits for one until `end` and while `keep_waiting` is true.
    pub(super) fn next(
        &mut self,
        watched: &Watched,
        end: Option<Instant>,
        keep_waiting: &dyn Fn() -> bool,
    ) -> Result<Option<Next>, Error> {
        loop {
            if let Some(next) = self.take(watched)? {
                return Ok(Some(next));
            }
            let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            let changes = watched.changes(Some(self.position), left, keep_waiting)?;
            self.apply(watched, changes, !keep_waiting())?;
            if self.pending.is_empty() && (left.is_zero() || !keep_waiting()) {
                return Ok(None);
            }
        }
    }
}
