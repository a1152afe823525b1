//! Names, slots and versions: the path of every lookup, so no lock and no counter is common to all.

use crate::TensorId;
use crate::leases::{Record, VersionState};
use crate::spill::{Away, Whereabouts};
use cotensor_core::sync;
use cotensor_core::{Error, ErrorKind, Result};
use hashbrown::HashTable;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// So many that threads at different names seldom meet in one.
pub(crate) const SHARDS: usize = 1024;
/// A shard's table with room for so many is not made smaller.
const ENTRIES_KEPT: usize = 7;

/// Aligned so that threads at different shards do not share a cache line.
#[repr(align(128))]
#[derive(Default)]
struct Shard(Mutex<Table>);

#[derive(Default)]
struct Table {
    entries: HashTable<Entry>,
    hits: u64,
    misses: u64,
}

struct Entry {
    name: Box<str>,
    slot: u64,
    /// Versions handed out so far.
    version: u64,
    current: Option<Arc<Record>>,
    /// Versions that were superseded or removed and are leased still.
    old: Old,
    /// The newest version, where its memory is elsewhere; there is no current one then.
    away: Option<Box<(Arc<Away>, TensorId)>>,
}

/// Mostly none, and then in one word.
#[derive(Default)]
#[allow(clippy::box_collection, reason = "one word instead of three, in every entry")]
struct Old(Option<Box<Vec<Arc<Record>>>>);

impl Old {
    fn iter(&self) -> impl Iterator<Item = &Arc<Record>> {
        self.0.iter().flat_map(|old| old.iter())
    }

    fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    fn push(&mut self, record: Arc<Record>) {
        self.0.get_or_insert_default().push(record);
    }

    fn remove(&mut self, id: TensorId) {
        if let Some(old) = &mut self.0 {
            old.retain(|old| old.id != id);
        }
        self.0.take_if(|old| old.is_empty());
    }
}

pub(crate) struct Names {
    shards: Vec<Shard>,
    hasher: foldhash::fast::FixedState,
    slots: AtomicU64,
    surveys: Mutex<()>,
}

/// Where a record of a former store belongs.
pub(crate) struct RestoredVersion {
    pub(crate) id: TensorId,
    pub(crate) versions: u64,
    pub(crate) state: VersionState,
}

/// What a name meant that means something else now, or nothing.
pub(crate) enum Superseded {
    Listed(Arc<Record>),
    Away(Arc<Away>, TensorId),
}

impl Entry {
    fn is_named(&self, name: &str) -> bool {
        *self.name == *name
    }

    fn whereabouts(&self) -> Whereabouts {
        match (&self.away, &self.current) {
            (Some(away), _) => Whereabouts::Away(Arc::clone(&away.0)),
            (None, Some(_)) => Whereabouts::Leaving,
            (None, None) => Whereabouts::Nowhere,
        }
    }
}

/// All records at one moment. One survey at a time: whoever evicts can rely on it that no report keeps alive what it
/// closes.
pub(crate) struct Survey<'a> {
    pub(crate) records: Vec<Arc<Record>>,
    _guard: MutexGuard<'a, ()>,
}

impl Names {
    /// Names of equal `seed` and number of shards are in the same shards, so that slots keep their meaning.
    pub(crate) fn new(shards: usize, seed: u64) -> Self {
        Self {
            shards: (0..shards).map(|_| Shard::default()).collect(),
            hasher: foldhash::fast::FixedState::with_seed(seed),
            slots: AtomicU64::new(1),
            surveys: Mutex::default(),
        }
    }

    /// The shard's number and the hash to look for in it.
    fn locate(&self, name: &str) -> (usize, u64) {
        let hash = self.hasher.hash_one(name);
        // Bits from the middle: the table inside uses the lowest and the highest.
        ((hash >> 24) as usize % self.shards.len(), hash)
    }

    fn lock(&self, index: usize) -> MutexGuard<'_, Table> {
        sync::lock(&self.shards[index].0)
    }

    /// The entry of `name`, made with a slot if there is none.
    fn entry<'a>(&self, names: &'a mut Table, hash: u64, name: &str, slot: impl FnOnce() -> u64) -> &'a mut Entry {
        names
            .entries
            .entry(hash, |entry| entry.is_named(name), |entry| self.hasher.hash_one(&*entry.name))
            .or_insert_with(|| Entry {
                name: name.into(),
                slot: slot(),
                version: 0,
                current: None,
                old: Old::default(),
                away: None,
            })
            .into_mut()
    }

    /// Gives back what a crowd of names left behind; to be called when one is gone.
    fn shrink(&self, entries: &mut HashTable<Entry>) {
        if entries.capacity() > ENTRIES_KEPT.max(4 * entries.len()) {
            entries.shrink_to(2 * entries.len(), |entry| self.hasher.hash_one(&*entry.name));
        }
    }

    /// A slot that nothing had before; its remainder says in which shard to look.
    fn new_slot(&self, index: usize) -> u64 {
        self.slots.fetch_add(1, Ordering::Relaxed) * self.shards.len() as u64 + index as u64
    }

    /// The newest version, made a lease by `take` while the name cannot change; counts a hit or a miss.
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

    /// Makes a record of the next version of `name` and puts it in place; returns the one it superseded, which may be
    /// away.
    pub(crate) fn publish(
        &self,
        name: &str,
        make: impl FnOnce(TensorId) -> Arc<Record>,
    ) -> (Arc<Record>, Option<Superseded>) {
        let (index, hash) = self.locate(name);
        let mut names = self.lock(index);
        let entry = self.entry(&mut names, hash, name, || self.new_slot(index));
        entry.version += 1;
        let record = make(TensorId { slot: entry.slot, version: entry.version });
        let away = entry.away.take().map(|away| Superseded::Away(away.0, away.1));
        let superseded = entry.current.replace(Arc::clone(&record));
        superseded.iter().for_each(|record| record.set_state(VersionState::Superseded));
        superseded.iter().for_each(|record| entry.old.push(Arc::clone(record)));
        (record, superseded.map(Superseded::Listed).or(away))
    }

    /// An identity for a tensor without a name.
    pub(crate) fn private_id(&self) -> TensorId {
        TensorId { slot: self.new_slot(0), version: 1 }
    }

    /// Puts a record where it was.
    pub(crate) fn restore(
        &self,
        name: &str,
        place: RestoredVersion,
        make: impl FnOnce() -> Arc<Record>,
    ) -> Result<Arc<Record>> {
        let RestoredVersion { id, versions, state } = place;
        let current = state == VersionState::Published;
        let (index, hash) = self.locate(name);
        if id.slot % self.shards.len() as u64 != index as u64 {
            return Err(Error::new(ErrorKind::Conflict, format!("{name:?} was in a store of another seed")));
        }
        self.skip(id.slot);
        let mut names = self.lock(index);
        let entry = self.entry(&mut names, hash, name, || id.slot);
        let taken = entry.current.iter().chain(entry.old.iter()).any(|record| record.id == id);
        if entry.slot != id.slot || taken || (current && entry.current.is_some()) {
            return Err(Error::new(ErrorKind::Conflict, format!("{name:?} has a version {} already", id.version)));
        }
        entry.version = entry.version.max(versions);
        let record = make();
        record.set_state(state);
        match current {
            true => entry.current = Some(Arc::clone(&record)),
            false => entry.old.push(Arc::clone(&record)),
        }
        Ok(record)
    }

    /// Leaves all slots up to `slot` to those who have them.
    pub(crate) fn skip(&self, slot: u64) {
        self.slots.fetch_max((slot / self.shards.len() as u64).saturating_add(1), Ordering::Relaxed);
    }

    /// One version of a name, made a lease by `take`.
    pub(crate) fn version<T>(
        &self,
        name: &str,
        version: u64,
        take: impl FnOnce(&Arc<Record>) -> Option<T>,
    ) -> Option<T> {
        let (index, hash) = self.locate(name);
        let names = self.lock(index);
        let entry = names.entries.find(hash, |entry| entry.is_named(name))?;
        entry.current.iter().chain(entry.old.iter()).find(|record| record.id.version == version).and_then(take)
    }

    /// The newest version.
    pub(crate) fn current(&self, name: &str) -> Option<TensorId> {
        let (index, hash) = self.locate(name);
        let names = self.lock(index);
        names.entries.find(hash, |entry| entry.is_named(name))?.current.as_ref().map(|record| record.id)
    }

    /// Takes `name` out of sight; returns what was there, once `hidden` was told of it unless it was away.
    pub(crate) fn remove(&self, name: &str, hidden: impl FnOnce(&Record)) -> Option<Superseded> {
        let (index, hash) = self.locate(name);
        let mut names = self.lock(index);
        let mut found = names.entries.find_entry(hash, |entry| entry.is_named(name)).ok()?;
        let entry = found.get_mut();
        if let Some(away) = entry.away.take() {
            if entry.old.is_empty() {
                found.remove();
                self.shrink(&mut names.entries);
            }
            return Some(Superseded::Away(away.0, away.1));
        }
        let record = entry.current.take()?;
        record.set_state(VersionState::Removed);
        entry.old.push(Arc::clone(&record));
        hidden(&record);
        Some(Superseded::Listed(record))
    }

    /// A closed record is away from now on if its name means it; else it is dropped, as by [`forget`](Self::forget).
    /// `told` is told which.
    pub(crate) fn put_away(&self, record: &Record, away: &Arc<Away>, told: impl FnOnce(bool)) {
        let (index, hash) = self.locate(record.name());
        let mut names = self.lock(index);
        let Ok(mut found) = names.entries.find_entry(hash, |entry| entry.is_named(record.name())) else { return };
        let entry = found.get_mut();
        let current = entry.current.take_if(|current| current.id == record.id).is_some();
        if current && record.is_retained() {
            entry.away = Some(Box::new((Arc::clone(away), record.id)));
            return told(true);
        }
        entry.old.remove(record.id);
        told(false);
        if entry.current.is_none() && entry.old.is_empty() && entry.away.is_none() {
            found.remove();
            self.shrink(&mut names.entries);
        }
    }

    /// Puts what `make` makes in the place of a version that is away still.
    pub(crate) fn bring_back(
        &self,
        name: &str,
        id: TensorId,
        away: &Arc<Away>,
        make: impl FnOnce() -> Arc<Record>,
    ) -> Option<Arc<Record>> {
        let (index, hash) = self.locate(name);
        let mut names = self.lock(index);
        let entry = names.entries.find_mut(hash, |entry| entry.is_named(name))?;
        entry.away.take_if(|other| Arc::ptr_eq(&other.0, away) && other.1 == id)?;
        let record = make();
        entry.current = Some(Arc::clone(&record));
        Some(record)
    }

    /// Makes a name that a former store had mean a version that is away.
    pub(crate) fn restore_away(&self, name: &str, id: TensorId, versions: u64, away: &Arc<Away>) -> Result<()> {
        let (index, hash) = self.locate(name);
        self.skip(id.slot);
        let mut names = self.lock(index);
        let there = names.entries.find(hash, |entry| entry.is_named(name));
        if there.is_some_and(|entry| entry.slot != id.slot || entry.current.is_some() || entry.away.is_some())
            || id.slot % self.shards.len() as u64 != index as u64
        {
            return Err(Error::new(ErrorKind::Conflict, format!("{name:?} is there already, or in another slot")));
        }
        let entry = self.entry(&mut names, hash, name, || id.slot);
        entry.version = entry.version.max(versions).max(id.version);
        entry.away = Some(Box::new((Arc::clone(away), id)));
        Ok(())
    }

    /// Where the newest version of `name` is when it cannot be leased.
    pub(crate) fn whereabouts(&self, name: &str) -> Whereabouts {
        let (index, hash) = self.locate(name);
        let names = self.lock(index);
        names.entries.find(hash, |entry| entry.is_named(name)).map_or(Whereabouts::Nowhere, Entry::whereabouts)
    }

    /// Where a version is when it cannot be leased.
    pub(crate) fn whereabouts_of(&self, id: TensorId) -> Whereabouts {
        let names = self.lock((id.slot % self.shards.len() as u64) as usize);
        match names.entries.iter().find(|entry| entry.slot == id.slot) {
            Some(entry) if entry.away.as_ref().is_some_and(|away| away.1 == id) => entry.whereabouts(),
            Some(entry) if entry.current.as_ref().is_some_and(|current| current.id == id) => Whereabouts::Leaving,
            _ => Whereabouts::Nowhere,
        }
    }

    /// All that is away, of names that start with `prefix`.
    pub(crate) fn aways(&self, prefix: &str) -> Vec<(Arc<Away>, TensorId)> {
        let mut found = Vec::new();
        for index in 0..self.shards.len() {
            let names = self.lock(index);
            let matching = names.entries.iter().filter(|entry| entry.name.starts_with(prefix));
            found.extend(matching.filter_map(|entry| entry.away.as_deref().cloned()));
        }
        found
    }

    /// Drops a record that is closed, and the name with its last version: should it ever come back, then in a new slot.
    /// `gone` is told.
    pub(crate) fn forget(&self, record: &Record, gone: impl FnOnce(&Record)) {
        let (index, hash) = self.locate(record.name());
        let mut names = self.lock(index);
        let Ok(mut found) = names.entries.find_entry(hash, |entry| entry.is_named(record.name())) else { return };
        let entry = found.get_mut();
        if entry.current.as_ref().is_some_and(|current| current.id == record.id) {
            entry.current = None;
        }
        entry.old.remove(record.id);
        gone(record);
        if entry.current.is_none() && entry.old.is_empty() && entry.away.is_none() {
            found.remove();
            self.shrink(&mut names.entries);
        }
    }

    /// The record with this identity, made a lease by `take`.
    pub(crate) fn by_id<T>(&self, id: TensorId, take: impl FnOnce(&Arc<Record>) -> Option<T>) -> Option<T> {
        let names = self.lock((id.slot % self.shards.len() as u64) as usize);
        let entry = names.entries.iter().find(|entry| entry.slot == id.slot)?;
        entry.current.iter().chain(entry.old.iter()).find(|record| record.id == id).and_then(take)
    }

    /// Every live record, by name and version.
    pub(crate) fn survey(&self) -> Survey<'_> {
        let guard = sync::lock(&self.surveys);
        let mut records: Vec<Arc<Record>> = Vec::new();
        for index in 0..self.shards.len() {
            for entry in &self.lock(index).entries {
                records.extend(entry.current.iter().chain(entry.old.iter()).cloned());
            }
        }
        records.sort_by(|a, b| (a.name(), a.id).cmp(&(b.name(), b.id)));
        Survey { records, _guard: guard }
    }

    /// Lookups that found a tensor, and that did not.
    pub(crate) fn hits_and_misses(&self) -> (u64, u64) {
        (0..self.shards.len()).fold((0, 0), |(hits, misses), index| {
            let names = self.lock(index);
            (hits + names.hits, misses + names.misses)
        })
    }
}
