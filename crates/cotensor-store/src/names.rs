//! Names, slots and versions: the path of every lookup, so no lock and no counter is common to all.

use crate::TensorId;
use crate::record::Record;
use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

const SHARDS: usize = 64;

/// Aligned so that threads at different shards do not share a cache line.
#[repr(align(128))]
#[derive(Default)]
struct Shard {
    names: RwLock<HashMap<String, Entry, foldhash::fast::RandomState>>,
    hits: AtomicU64,
    misses: AtomicU64,
}

struct Entry {
    slot: u64,
    /// Versions handed out so far.
    version: u64,
    current: Option<Arc<Record>>,
    /// Versions that were superseded or removed and are leased still.
    old: Vec<Arc<Record>>,
}

pub(crate) struct Names {
    shards: Vec<Shard>,
    hasher: foldhash::fast::RandomState,
    slots: AtomicU64,
    surveys: Mutex<()>,
}

/// All records at one moment. One survey at a time: whoever evicts can rely on it that no report keeps alive what it
/// closes.
pub(crate) struct Survey<'a> {
    pub(crate) records: Vec<Arc<Record>>,
    _guard: MutexGuard<'a, ()>,
}

impl Default for Names {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            hasher: foldhash::fast::RandomState::default(),
            slots: AtomicU64::new(1),
            surveys: Mutex::default(),
        }
    }
}

type Map = HashMap<String, Entry, foldhash::fast::RandomState>;

impl Names {
    fn index(&self, name: &str) -> usize {
        // The high bits: the map inside uses the low ones.
        (self.hasher.hash_one(name) >> 56) as usize % SHARDS
    }

    fn shard(&self, name: &str) -> &Shard {
        &self.shards[self.index(name)]
    }

    /// A slot that nothing had before; its remainder says in which shard to look.
    fn new_slot(&self, index: usize) -> u64 {
        self.slots.fetch_add(1, Ordering::Relaxed) * SHARDS as u64 + index as u64
    }

    fn read(shard: &Shard) -> RwLockReadGuard<'_, Map> {
        shard.names.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(shard: &Shard) -> RwLockWriteGuard<'_, Map> {
        shard.names.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest version, made a lease by `take` while the name cannot change; counts a hit or a miss.
    pub(crate) fn find<T>(&self, name: &str, take: impl FnOnce(&Arc<Record>) -> Option<T>) -> Option<T> {
        let shard = self.shard(name);
        let found = Self::read(shard).get(name).and_then(|entry| entry.current.as_ref()).and_then(take);
        let counter = if found.is_some() { &shard.hits } else { &shard.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// Makes a record of the next version of `name` and puts it in place; returns the one it superseded.
    pub(crate) fn publish(
        &self,
        name: &str,
        make: impl FnOnce(TensorId) -> Arc<Record>,
    ) -> (Arc<Record>, Option<Arc<Record>>) {
        let index = self.index(name);
        let mut names = Self::write(&self.shards[index]);
        let entry = names.entry(name.to_owned()).or_insert_with(|| Entry {
            slot: self.new_slot(index),
            version: 0,
            current: None,
            old: Vec::new(),
        });
        entry.version += 1;
        let record = make(TensorId { slot: entry.slot, version: entry.version });
        let superseded = entry.current.replace(Arc::clone(&record));
        entry.old.extend(superseded.clone());
        (record, superseded)
    }

    /// An identity for a tensor without a name.
    pub(crate) fn private_id(&self) -> TensorId {
        TensorId { slot: self.new_slot(0), version: 1 }
    }

    /// Takes `name` out of sight; returns what was there.
    pub(crate) fn remove(&self, name: &str) -> Option<Arc<Record>> {
        let mut names = Self::write(self.shard(name));
        let entry = names.get_mut(name)?;
        let record = entry.current.take()?;
        entry.old.push(Arc::clone(&record));
        Some(record)
    }

    /// Drops a record that is closed, and the name with its last version: should it ever come back, then in a new slot.
    pub(crate) fn forget(&self, record: &Record) {
        let mut names = Self::write(self.shard(&record.spec.name));
        let Some(entry) = names.get_mut(record.spec.name.as_str()) else { return };
        if entry.current.as_ref().is_some_and(|current| current.id == record.id) {
            entry.current = None;
        }
        entry.old.retain(|old| old.id != record.id);
        if entry.current.is_none() && entry.old.is_empty() {
            names.remove(record.spec.name.as_str());
        }
    }

    /// The record with this identity, made a lease by `take`.
    pub(crate) fn by_id<T>(&self, id: TensorId, take: impl FnOnce(&Arc<Record>) -> Option<T>) -> Option<T> {
        let names = Self::read(&self.shards[(id.slot % SHARDS as u64) as usize]);
        let entry = names.values().find(|entry| entry.slot == id.slot)?;
        entry.current.iter().chain(&entry.old).find(|record| record.id == id).and_then(take)
    }

    /// Every live record, by name and version.
    pub(crate) fn survey(&self) -> Survey<'_> {
        let guard = self.surveys.lock().unwrap_or_else(PoisonError::into_inner);
        let mut records: Vec<Arc<Record>> = Vec::new();
        for shard in &self.shards {
            for entry in Self::read(shard).values() {
                records.extend(entry.current.iter().chain(&entry.old).cloned());
            }
        }
        records.sort_by(|a, b| (&a.spec.name, a.id.version).cmp(&(&b.spec.name, b.id.version)));
        Survey { records, _guard: guard }
    }

    /// Lookups that found a tensor, and that did not.
    pub(crate) fn hits_and_misses(&self) -> (u64, u64) {
        let sum = |counter: fn(&Shard) -> &AtomicU64| {
            self.shards.iter().map(|shard| counter(shard).load(Ordering::Relaxed)).sum()
        };
        (sum(|shard| &shard.hits), sum(|shard| &shard.misses))
    }
}
