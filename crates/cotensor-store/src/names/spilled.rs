//! Spilled versions in the table of names.

use crate::TensorId;
use crate::leases::Record;
use crate::names::Names;
use crate::spill::{Location, SpilledSet};
use cotensor_core::{Error, ErrorKind, Result};
use std::collections::HashMap;
use std::sync::Arc;

/// The outcome of replacing a record by its spilled set.
pub(crate) enum SpillOutcome {
    /// The set has replaced it.
    Spilled,
    /// The record was removed.
    Removed {
        /// Whether it was the newest version of its name.
        was_newest: bool,
    },
}

impl Names {
    /// Replaces a closed record by its spilled set if it is the newest version of its name and retained; else removes
    /// it, as [`forget`](Self::forget) does. Calls `done` while the name is locked.
    pub(crate) fn spill(&self, record: &Record, set: &Arc<SpilledSet>, done: impl FnOnce(SpillOutcome)) {
        let (index, hash) = self.locate(record.name());
        let mut names = self.lock(index);
        let Ok(mut found) = names.entries.find_entry(hash, |entry| entry.is_named(record.name())) else { return };
        let entry = found.get_mut();
        let current = entry.current.take_if(|current| current.id == record.id).is_some();
        if current && record.is_retained() {
            entry.spilled = Some(Box::new((Arc::clone(set), record.id)));
            return done(SpillOutcome::Spilled);
        }
        entry.old.remove(record.id);
        done(SpillOutcome::Removed { was_newest: current });
        if entry.is_empty() {
            found.remove();
            self.shrink(&mut names.entries);
        }
    }

    /// Replaces a version that is still spilled by the record that `make` returns.
    pub(crate) fn unspill(
        &self,
        name: &str,
        id: TensorId,
        set: &Arc<SpilledSet>,
        make: impl FnOnce() -> Arc<Record>,
    ) -> Option<Arc<Record>> {
        let (index, hash) = self.locate(name);
        let mut names = self.lock(index);
        let entry = names.entries.find_mut(hash, |entry| entry.is_named(name))?;
        entry.spilled.take_if(|spilled| Arc::ptr_eq(&spilled.0, set) && spilled.1 == id)?;
        let record = make();
        entry.current = Some(Arc::clone(&record));
        Some(record)
    }

    /// Lists a spilled version of a former store.
    ///
    /// # Errors
    /// `Conflict` when the name has another id, or a newest version.
    pub(crate) fn restore_spilled(&self, name: &str, id: TensorId, versions: u64, set: &Arc<SpilledSet>) -> Result<()> {
        let (index, hash) = self.locate(name);
        self.skip(id.name_id);
        let mut names = self.lock(index);
        let there = names.entries.find(hash, |entry| entry.is_named(name));
        if there.is_some_and(|entry| entry.name_id != id.name_id || entry.current.is_some() || entry.spilled.is_some())
            || id.name_id % self.shards.len() as u64 != index as u64
        {
            return Err(Error::new(ErrorKind::Conflict, format!("{name:?} exists already, or has another id")));
        }
        let entry = self.entry(&mut names, hash, name, || id.name_id);
        entry.version = entry.version.max(versions).max(id.version);
        entry.spilled = Some(Box::new((Arc::clone(set), id)));
        Ok(())
    }

    /// The state of the newest version of `name` when it cannot be leased.
    pub(crate) fn location(&self, name: &str) -> Location {
        let (index, hash) = self.locate(name);
        let names = self.lock(index);
        names.entries.find(hash, |entry| entry.is_named(name)).map_or(Location::Absent, |entry| entry.location())
    }

    /// The state of a version when it cannot be leased.
    pub(crate) fn location_of(&self, id: TensorId) -> Location {
        let names = self.lock((id.name_id % self.shards.len() as u64) as usize);
        match names.entries.iter().find(|entry| entry.name_id == id.name_id) {
            Some(entry) if entry.spilled.as_ref().is_some_and(|spilled| spilled.1 == id) => entry.location(),
            Some(entry) if entry.current.as_ref().is_some_and(|current| current.id == id) => Location::Closing,
            _ => Location::Absent,
        }
    }

    /// The spilled versions of names that start with `prefix`.
    pub(crate) fn spilled(&self, prefix: &str) -> Vec<(Arc<SpilledSet>, TensorId)> {
        let mut found = Vec::new();
        for index in 0..self.shards.len() {
            let names = self.lock(index);
            let matching = names.entries.iter().filter(|entry| entry.name.starts_with(prefix));
            found.extend(matching.filter_map(|entry| entry.spilled.as_deref().cloned()));
        }
        found
    }

    /// The number of spilled tensors, and the bytes of their segments.
    pub(crate) fn count_spilled(&self) -> (usize, u64) {
        let spilled = self.spilled("");
        let by_segment: HashMap<_, u64> = spilled.iter().map(|(set, _)| (Arc::as_ptr(set), set.bytes)).collect();
        (spilled.len(), by_segment.into_values().sum())
    }
}
