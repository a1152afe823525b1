//! The table of names. Every lookup comes here, so it is sharded: no lock and no counter is common to all names.

use crate::leases::{Record, VersionState};
use crate::spill::{Location, SpilledSet};
use crate::{Expected, NameFilter, TensorId};
use cotensor_core::sync;
use cotensor_core::{Error, ErrorKind, Result};
use hashbrown::HashTable;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// The number of shards: enough that threads at different names seldom share one.
pub(crate) const SHARDS: usize = 1024;
/// The bits of a table's first id, before it is multiplied by the number of shards: ids stay below 2^53, which numbers in JSON
/// are exact up to, for 2^42 further names.
const FIRST_ID_BITS: u32 = 42;
/// The capacity below which a shard's table does not shrink.
const CAPACITY_MIN: usize = 7;

/// Aligned so that threads at different shards do not share a cache line.
#[repr(align(128))]
#[derive(Default)]
pub(super) struct Shard(Mutex<NameTable>);

#[derive(Default)]
pub(super) struct NameTable {
    pub(super) entries: HashTable<NameEntry>,
    hits: u64,
    misses: u64,
}

pub(crate) struct NameEntry {
    pub(super) name: Box<str>,
    pub(super) name_id: u64,
    /// The number of versions so far.
    pub(super) version: u64,
    pub(super) current: Option<Arc<Record>>,
    /// Superseded and removed versions with leases.
    pub(super) old: OldVersions,
    /// The newest version if it is spilled; `current` is then `None`.
    pub(super) spilled: Option<Box<(Arc<SpilledSet>, TensorId)>>,
}

/// Most names have none, which takes one word.
#[derive(Default)]
#[allow(clippy::box_collection, reason = "one word instead of three, in every entry")]
pub(super) struct OldVersions(Option<Box<Vec<Arc<Record>>>>);

impl OldVersions {
    fn iter(&self) -> impl Iterator<Item = &Arc<Record>> {
        self.0.iter().flat_map(|old| old.iter())
    }

    fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    fn push(&mut self, record: Arc<Record>) {
        self.0.get_or_insert_default().push(record);
    }

    pub(super) fn remove(&mut self, id: TensorId) {
        if let Some(old) = &mut self.0 {
            old.retain(|old| old.id != id);
        }
        self.0.take_if(|old| old.is_empty());
    }
}

pub(crate) struct Names {
    pub(super) shards: Vec<Shard>,
    hasher: foldhash::fast::FixedState,
    name_ids: AtomicU64,
    surveys: Mutex<()>,
}

/// The position of a record in a former store.
pub(crate) struct RestoredVersion {
    pub(crate) id: TensorId,
    pub(crate) versions: u64,
    pub(crate) state: VersionState,
}

/// The version that a name loses when it is published again or removed.
pub(crate) enum Superseded {
    InMemory(Arc<Record>),
    Spilled(Arc<SpilledSet>, TensorId),
}

impl NameEntry {
    pub(super) fn is_named(&self, name: &str) -> bool {
        *self.name == *name
    }

    pub(super) fn location(&self) -> Location {
        match (&self.spilled, &self.current) {
            (Some(spilled), _) => Location::Spilled(Arc::clone(&spilled.0)),
            (None, Some(_)) => Location::Closing,
            (None, None) => Location::Absent,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.current.is_none() && self.old.is_empty() && self.spilled.is_none()
    }

    /// The newest version, in memory or spilled.
    pub(crate) fn newest(&self) -> Option<TensorId> {
        self.current.as_ref().map(|record| record.id).or_else(|| self.spilled_id())
    }

    /// The newest version if it is spilled.
    pub(crate) fn spilled_id(&self) -> Option<TensorId> {
        self.spilled.as_ref().map(|spilled| spilled.1)
    }

    fn versions(&self) -> impl Iterator<Item = &Arc<Record>> {
        self.current.iter().chain(self.old.iter())
    }
}

/// All records at one moment. One survey exists at a time, so that no report holds a record that an eviction closes.
pub(crate) struct Survey<'a> {
    pub(crate) records: Vec<Arc<Record>>,
    _guard: MutexGuard<'a, ()>,
}

impl Names {
    /// Tables with the same seed and number of shards put each name into the same shard, so that ids keep their
    /// meaning. Tables with random seeds begin at different ids, so that an id names no tensor of another store.
    pub(crate) fn new(shards: usize, seed: u64) -> Self {
        Self {
            shards: (0..shards).map(|_| Shard::default()).collect(),
            hasher: foldhash::fast::FixedState::with_seed(seed),
            name_ids: AtomicU64::new((seed >> (64 - FIRST_ID_BITS)) + 1),
            surveys: Mutex::default(),
        }
    }

    /// The shard of a name, and its hash there.
    pub(super) fn locate(&self, name: &str) -> (usize, u64) {
        let hash = self.hasher.hash_one(name);
        // The shard is chosen by bits from the middle. The table inside uses the lowest and the highest.
        ((hash >> 24) as usize % self.shards.len(), hash)
    }

    pub(super) fn lock(&self, index: usize) -> MutexGuard<'_, NameTable> {
        sync::lock(&self.shards[index].0)
    }

    /// The entry of `name`; a new one with `name_id` if there is none.
    pub(super) fn entry<'a>(
        &self,
        names: &'a mut NameTable,
        hash: u64,
        name: &str,
        name_id: impl FnOnce() -> u64,
    ) -> &'a mut NameEntry {
        names
            .entries
            .entry(hash, |entry| entry.is_named(name), |entry| self.hasher.hash_one(&*entry.name))
            .or_insert_with(|| NameEntry {
                name: name.into(),
                name_id: name_id(),
                version: 0,
                current: None,
                old: OldVersions::default(),
                spilled: None,
            })
            .into_mut()
    }

    /// Shrinks a table after many names were removed. Called after each removal.
    pub(super) fn shrink(&self, entries: &mut HashTable<NameEntry>) {
        if entries.capacity() > CAPACITY_MIN.max(4 * entries.len()) {
            entries.shrink_to(2 * entries.len(), |entry| self.hasher.hash_one(&*entry.name));
        }
    }

    /// An id for a new name. Its remainder by the number of shards is the shard.
    fn new_name_id(&self, index: usize) -> u64 {
        self.name_ids.fetch_add(1, Ordering::Relaxed) * self.shards.len() as u64 + index as u64
    }

    /// Calls `take` on the newest version while the name is locked. Counts a hit or a miss.
    pub(crate) fn find<T>(&self, name: &str, take: impl FnOnce(&Arc<Record>) -> Option<T>) -> Option<T> {
        let (index, hash) = self.locate(name);
        let mut names = self.lock(index);
        let entry = names.entries.find(hash, |entry| entry.is_named(name));
        let found = entry.and_then(|entry| entry.current.as_ref()).and_then(take);
        match found {
            Some(_) => names.hits += 1,
            None => names.misses += 1,
        }
        found
    }

    /// Publishes the record that `make` returns as the next version of `name`. Returns the version that it supersedes.
    ///
    /// # Errors
    /// `Conflict` when the name has another newest version than the expected one.
    pub(crate) fn publish(
        &self,
        name: &str,
        expected: Expected,
        make: impl FnOnce(TensorId) -> Arc<Record>,
    ) -> Result<(Arc<Record>, Option<Superseded>)> {
        let (index, hash) = self.locate(name);
        let mut names = self.lock(index);
        let newest = || names.entries.find(hash, |entry| entry.is_named(name)).and_then(NameEntry::newest);
        if !expected.allows(newest) {
            let message = format!("{name:?} has another newest version than the expected one");
            return Err(Error::new(ErrorKind::Conflict, message).in_field(name));
        }
        let entry = self.entry(&mut names, hash, name, || self.new_name_id(index));
        entry.version += 1;
        let record = make(TensorId { name_id: entry.name_id, version: entry.version });
        let spilled = entry.spilled.take().map(|spilled| Superseded::Spilled(spilled.0, spilled.1));
        let superseded = entry.current.replace(Arc::clone(&record));
        superseded.iter().for_each(|record| record.set_state(VersionState::Superseded));
        superseded.iter().for_each(|record| entry.old.push(Arc::clone(record)));
        Ok((record, superseded.map(Superseded::InMemory).or(spilled)))
    }

    /// An id for an unlisted tensor.
    pub(crate) fn private_id(&self) -> TensorId {
        TensorId { name_id: self.new_name_id(0), version: 1 }
    }

    /// Lists a record at its position in a former store.
    ///
    /// # Errors
    /// `Conflict` when the name has another id, or the version exists.
    pub(crate) fn restore(
        &self,
        name: &str,
        position: RestoredVersion,
        make: impl FnOnce() -> Arc<Record>,
    ) -> Result<Arc<Record>> {
        let RestoredVersion { id, versions, state } = position;
        let current = state == VersionState::Published;
        let (index, hash) = self.locate(name);
        if id.name_id % self.shards.len() as u64 != index as u64 {
            return Err(Error::new(ErrorKind::Conflict, format!("{name:?} was in a store with another seed")));
        }
        self.skip(id.name_id);
        let mut names = self.lock(index);
        let entry = self.entry(&mut names, hash, name, || id.name_id);
        let taken = entry.versions().any(|record| record.id == id);
        if entry.name_id != id.name_id || taken || (current && entry.newest().is_some()) {
            return Err(Error::new(ErrorKind::Conflict, format!("{name:?} already has version {}", id.version)));
        }
        entry.version = entry.version.max(versions);
        let record = make();
        record.set_state(state);
        if current {
            entry.current = Some(Arc::clone(&record))
        } else {
            entry.old.push(Arc::clone(&record))
        }
        Ok(record)
    }

    /// Gives no id up to `name_id` to a new name.
    pub(crate) fn skip(&self, name_id: u64) {
        self.name_ids.fetch_max((name_id / self.shards.len() as u64).saturating_add(1), Ordering::Relaxed);
    }

    /// Calls `take` on one version of `name` while the name is locked.
    pub(crate) fn version<T>(
        &self,
        name: &str,
        version: u64,
        take: impl FnOnce(&Arc<Record>) -> Option<T>,
    ) -> Option<T> {
        let (index, hash) = self.locate(name);
        let names = self.lock(index);
        let entry = names.entries.find(hash, |entry| entry.is_named(name))?;
        entry.versions().find(|record| record.id.version == version).and_then(take)
    }

    /// The newest version, in memory or spilled.
    pub(crate) fn newest(&self, name: &str) -> Option<TensorId> {
        let (index, hash) = self.locate(name);
        let names = self.lock(index);
        names.entries.find(hash, |entry| entry.is_named(name))?.newest()
    }

    /// Calls `each` with every name that starts with `prefix` and its newest version, in no order. A part of the names
    /// is locked meanwhile.
    pub(crate) fn each(&self, prefix: &str, mut each: impl FnMut(&str, TensorId)) {
        for index in 0..self.shards.len() {
            for entry in self.lock(index).entries.iter().filter(|entry| entry.name.starts_with(prefix)) {
                if let Some(id) = entry.newest() {
                    each(&entry.name, id);
                }
            }
        }
    }

    /// Calls `each` with every name that `filter` selects, its newest version, and the version's record unless it is spilled, in no order. A
    /// part of the names is locked meanwhile.
    pub(crate) fn each_newest(&self, filter: &NameFilter, mut each: impl FnMut(&str, TensorId, Option<&Arc<Record>>)) {
        let shards = match filter {
            NameFilter::Name(name) => {
                let index = self.locate(name).0;
                index..index + 1
            }
            NameFilter::Prefix(_) => 0..self.shards.len(),
        };
        for index in shards {
            for entry in self.lock(index).entries.iter().filter(|entry| filter.selects(&entry.name)) {
                if let Some(id) = entry.newest() {
                    each(&entry.name, id, entry.current.as_ref());
                }
            }
        }
    }

    /// The newest version in memory.
    pub(crate) fn current(&self, name: &str) -> Option<TensorId> {
        let (index, hash) = self.locate(name);
        let names = self.lock(index);
        names.entries.find(hash, |entry| entry.is_named(name))?.current.as_ref().map(|record| record.id)
    }

    /// Removes `name` if `is_meant` is true of its entry; returns its newest version. Calls `on_unlist` while the name is
    /// locked, with the version unless it is spilled.
    pub(crate) fn remove(
        &self,
        name: &str,
        is_meant: impl FnOnce(&NameEntry) -> bool,
        on_unlist: impl FnOnce(Option<&Record>),
    ) -> Option<Superseded> {
        let (index, hash) = self.locate(name);
        let mut names = self.lock(index);
        let mut found = names.entries.find_entry(hash, |entry| entry.is_named(name)).ok()?;
        let entry = found.get_mut();
        if !is_meant(entry) {
            return None;
        }
        if let Some(spilled) = entry.spilled.take() {
            on_unlist(None);
            if entry.old.is_empty() {
                found.remove();
                self.shrink(&mut names.entries);
            }
            return Some(Superseded::Spilled(spilled.0, spilled.1));
        }
        let record = entry.current.take()?;
        record.set_state(VersionState::Removed);
        entry.old.push(Arc::clone(&record));
        on_unlist(Some(&record));
        Some(Superseded::InMemory(record))
    }

    /// Removes a closed record, and the name with its last version; a name that is published again gets a new id.
    /// Calls `on_free` while the name is locked, with whether the record was the newest version.
    pub(crate) fn forget(&self, record: &Record, on_free: impl FnOnce(&Record, bool)) {
        let (index, hash) = self.locate(record.name());
        let mut names = self.lock(index);
        let Ok(mut found) = names.entries.find_entry(hash, |entry| entry.is_named(record.name())) else { return };
        let entry = found.get_mut();
        let newest = entry.current.take_if(|current| current.id == record.id).is_some();
        entry.old.remove(record.id);
        on_free(record, newest);
        if entry.is_empty() {
            found.remove();
            self.shrink(&mut names.entries);
        }
    }

    /// Calls `take` on the version with this id while its shard is locked.
    pub(crate) fn by_id<T>(&self, id: TensorId, take: impl FnOnce(&Arc<Record>) -> Option<T>) -> Option<T> {
        let names = self.lock((id.name_id % self.shards.len() as u64) as usize);
        let entry = names.entries.iter().find(|entry| entry.name_id == id.name_id)?;
        entry.versions().find(|record| record.id == id).and_then(take)
    }

    /// The records without leases, in no order. Others may take leases meanwhile; no other thread makes room.
    pub(crate) fn unleased(&self) -> Survey<'_> {
        let guard = sync::lock(&self.surveys);
        let mut records: Vec<Arc<Record>> = Vec::new();
        for index in 0..self.shards.len() {
            for entry in &self.lock(index).entries {
                records.extend(entry.versions().filter(|record| record.leases.is_empty()).cloned());
            }
        }
        Survey { records, _guard: guard }
    }

    /// Every record, by name and version.
    pub(crate) fn survey(&self) -> Survey<'_> {
        let guard = sync::lock(&self.surveys);
        let mut records: Vec<Arc<Record>> = Vec::new();
        for index in 0..self.shards.len() {
            for entry in &self.lock(index).entries {
                records.extend(entry.versions().cloned());
            }
        }
        records.sort_by(|a, b| (a.name(), a.id).cmp(&(b.name(), b.id)));
        Survey { records, _guard: guard }
    }

    /// The numbers of lookups that found a tensor, and that did not.
    pub(crate) fn hits_and_misses(&self) -> (u64, u64) {
        (0..self.shards.len()).fold((0, 0), |(hits, misses), index| {
            let names = self.lock(index);
            (hits + names.hits, misses + names.misses)
        })
    }
}
