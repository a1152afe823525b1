//! The index that spares clients a round trip: which generation each slot has, and nothing else.

use cotensor_client::protocol::IndexSlot;
use cotensor_core::{Error, Result};
use cotensor_memory::Index;
use cotensor_store::home::Record;
use cotensor_store::{EmbeddedStore, Lease, TensorId};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Names that can be in the index at a time. Those beyond cost their readers a round trip.
pub(crate) const INDEX_SLOTS: u32 = 1 << 16;

/// Who has which slot. A slot's generation never comes back: what a reader remembers of a slot that was given to
/// another name is never what he finds there.
pub(crate) struct Slots {
    index: Index,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// By the store's slot of the name.
    taken: HashMap<u64, Taken>,
    free: Vec<u32>,
    /// Slots that were in use at some time: all below this.
    used: u32,
    generation: u64,
}

struct Taken {
    version: u64,
    place: IndexSlot,
}

impl Slots {
    /// Slots in an index that this process alone, or its keeper with it, can write from now on.
    ///
    /// # Errors
    /// `Io` when the system refuses.
    pub(crate) fn new(index: Index) -> Result<Self> {
        index.seal()?;
        Ok(Self { index, table: Mutex::default() })
    }

    pub(crate) fn count(&self) -> u32 {
        self.index.slots()
    }

    /// The descriptor for clients.
    pub(crate) fn fd(&self) -> Result<OwnedFd> {
        self.index.fd().try_clone_to_owned().map_err(|error| Error::io("duplicating a descriptor", &error))
    }

    /// Where a reader who has this lease sees whether its name still means it; `None` when it does not, or no slot is
    /// free.
    pub(crate) fn slot_of(&self, store: &EmbeddedStore, lease: &Lease) -> Option<IndexSlot> {
        let TensorId { slot: name, version } = lease.id();
        let mut table = self.lock();
        if let Some(taken) = table.taken.get(&name) {
            return (taken.version == version).then_some(taken.place);
        }
        let place = self.take(&mut table, name, version)?;
        drop(table);
        // A newer version that came before the slot was taken has told nobody of it: look once more. One that comes now
        // ends the slot.
        if store.newest(lease.name()) == Some(lease.id()) {
            return Some(place);
        }
        self.end(name);
        None
    }

    fn take(&self, table: &mut Table, name: u64, version: u64) -> Option<IndexSlot> {
        let slot = match table.free.pop() {
            Some(slot) => slot,
            None if table.used < self.index.slots() => {
                table.used += 1;
                table.used - 1
            }
            None => return None,
        };
        table.generation += 1;
        let place = IndexSlot { slot, generation: table.generation };
        self.index.set(slot, place.generation);
        table.taken.insert(name, Taken { version, place });
        Some(place)
    }

    /// The name that has this slot of the store means something else from now on.
    pub(crate) fn end(&self, name: u64) {
        let mut table = self.lock();
        if let Some(taken) = table.taken.remove(&name) {
            self.index.set(taken.place.slot, 0);
            table.free.push(taken.place.slot);
        }
    }

    /// This version is out of the store.
    pub(crate) fn gone(&self, record: &Record) {
        let newest = self.lock().taken.get(&record.id().slot).is_some_and(|taken| taken.version == record.id().version);
        if newest {
            self.end(record.id().slot);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_memory::IndexReader;
    use cotensor_store::{Retention, Store, TensorSpec};

    fn put(store: &EmbeddedStore, name: &str) -> Lease {
        let spec = TensorSpec {
            name: name.to_owned(),
            dtype: cotensor_core::DType::U8,
            shape: vec![1],
            kind: cotensor_core::Kind::Other,
            space: None,
            producer: String::new(),
            retention: Retention::WhileLeased,
            provenance: None,
        };
        store.reserve(spec, &store.holder("m")).unwrap().publish().unwrap()
    }

    #[test]
    fn slots_are_used_again_and_generations_never() {
        let (store, slots) = (EmbeddedStore::builder().build(), Slots::new(Index::create(2).unwrap()).unwrap());
        let reader = IndexReader::open(&slots.fd().unwrap(), 2).unwrap();
        let (a, b, c) = (put(&store, "a"), put(&store, "b"), put(&store, "c"));
        let first = slots.slot_of(&store, &a).unwrap();
        assert_eq!(slots.slot_of(&store, &a), Some(first));
        assert_eq!(reader.get(first.slot), Some(first.generation));
        assert_ne!(slots.slot_of(&store, &b).unwrap().slot, first.slot);
        assert_eq!(slots.slot_of(&store, &c), None, "all are taken");
        slots.end(a.id().slot);
        assert_eq!(reader.get(first.slot), Some(0));
        let next = slots.slot_of(&store, &c).unwrap();
        assert!(next.slot == first.slot && next.generation > first.generation);
        assert_eq!(reader.get(next.slot), Some(next.generation));
        // A version that is not the newest any more has none, whenever that came to be.
        let newer = put(&store, "c");
        slots.end(c.id().slot);
        assert_eq!((slots.slot_of(&store, &c), reader.get(next.slot)), (None, Some(0)));
        assert!(slots.slot_of(&store, &newer).is_some());
    }
}
