//! The shared index: it holds the generation of each slot, so that a client can check its newest version without a
//! call.

use cotensor_client::protocol::IndexSlot;
use cotensor_core::{Error, Result};
use cotensor_memory::SharedIndex;
use cotensor_store::backend::Record;
use cotensor_store::{self as store, VersionWord, WordTable};
use cotensor_store::{Lease, LocalStore};
use std::os::fd::OwnedFd;

/// The slots of the index and their versions.
pub(crate) struct Slots(store::VersionWords<Shared>);

/// The index, which clients map.
struct Shared(SharedIndex);

impl WordTable for Shared {
    fn count(&self) -> u32 {
        self.0.slots()
    }

    fn set(&self, word: u32, value: u64) {
        self.0.set(word, value);
    }
}

impl Slots {
    /// Slots in an index that only this process and its supervisor can write from now on.
    ///
    /// # Errors
    /// `Io` when the system refuses.
    pub(crate) fn new(index: SharedIndex) -> Result<Self> {
        index.seal()?;
        Ok(Self(store::VersionWords::new(Shared(index))))
    }

    pub(crate) fn count(&self) -> u32 {
        self.0.words().count()
    }

    /// The descriptor for clients.
    pub(crate) fn fd(&self) -> Result<OwnedFd> {
        let fd = self.0.words().0.fd();
        fd.try_clone_to_owned().map_err(|error| Error::io("duplicating a descriptor", &error))
    }

    /// The slot in which the holder of a lease checks that it has the newest version. `None` for an older version, and
    /// when no slot is free.
    pub(crate) fn slot_of(&self, store: &LocalStore, lease: &Lease) -> Option<IndexSlot> {
        let id = lease.id();
        let place = self.0.assign(id.name_id, id.version, || store.newest(lease.name()) == Some(id));
        place.map(|VersionWord { word, generation }| IndexSlot { slot: word, generation })
    }

    /// The name with this id has another version now, or none.
    pub(crate) fn invalidate(&self, name: u64) {
        self.0.invalidate(name);
    }

    /// A version was freed.
    pub(crate) fn on_free(&self, record: &Record) {
        self.0.invalidate_version(record.id().name_id, record.id().version);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_memory::SharedIndexReader;
    use cotensor_store::{TensorSpec, TensorStore};

    fn put(store: &LocalStore, name: &str) -> Lease {
        let spec = TensorSpec::new(name, cotensor_core::DType::U8, &[1]);
        store.reserve(spec, &store.holder("m")).unwrap().publish().unwrap()
    }

    #[test]
    fn slots_are_reused_with_new_generations() {
        let (store, slots) = (LocalStore::builder().build(), Slots::new(SharedIndex::create(2).unwrap()).unwrap());
        let reader = SharedIndexReader::open(&slots.fd().unwrap(), 2).unwrap();
        let (a, b, c) = (put(&store, "a"), put(&store, "b"), put(&store, "c"));
        let first = slots.slot_of(&store, &a).unwrap();
        assert_eq!(slots.slot_of(&store, &a), Some(first));
        assert_eq!(reader.get(first.slot), Some(first.generation));
        assert_ne!(slots.slot_of(&store, &b).unwrap().slot, first.slot);
        assert_eq!(slots.slot_of(&store, &c), None, "all are taken");
        slots.invalidate(a.id().name_id);
        assert_eq!(reader.get(first.slot), Some(0));
        let next = slots.slot_of(&store, &c).unwrap();
        assert!(next.slot == first.slot && next.generation > first.generation);
        assert_eq!(reader.get(next.slot), Some(next.generation));
        // A superseded version has no slot.
        let newer = put(&store, "c");
        slots.invalidate(c.id().name_id);
        assert_eq!((slots.slot_of(&store, &c), reader.get(next.slot)), (None, Some(0)));
        assert!(slots.slot_of(&store, &newer).is_some());
    }
}
