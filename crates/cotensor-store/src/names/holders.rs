//! Holders by number and by name. Names without users are removed, because sessions come and go.

use crate::Holder;
use cotensor_core::sync;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The number of names below which unused ones are not removed.
const UNSWEPT_MAX: usize = 1024;
/// References of the table itself to a name.
const OWN_REFERENCES: usize = 2;

/// The holders of one store.
///
/// Invariant H1: a number stands for one name while a [`Holder`] with it or a lease of it exists. So a name is removed when
/// it had no `Holder`, was not looked up since, and had no lease after that.
#[derive(Default)]
pub struct Holders(RwLock<HolderTable>);

#[derive(Default)]
struct HolderTable {
    ids: HashMap<Arc<str>, u32>,
    names: HashMap<u32, Named>,
    next: u32,
    /// The number of names after the last sweep.
    left: usize,
}

struct Named {
    name: Arc<str>,
    /// Whether it was looked up since the last sweep began.
    is_recent: AtomicBool,
}

impl Named {
    fn holder(&self, id: u32) -> Holder {
        self.is_recent.store(true, Ordering::SeqCst);
        Holder { id, name: Arc::clone(&self.name) }
    }

    fn is_unused(&self) -> bool {
        Arc::strong_count(&self.name) == OWN_REFERENCES
    }
}

impl Holders {
    /// The holder of that name, always the same one. `leased` returns the holders with leases; a sweep calls it, without the
    /// lock of this table.
    pub fn holder(&self, name: &str, leased: impl FnOnce() -> HashSet<u32>) -> Holder {
        if let Some(known) = self.read().find(name) {
            return known;
        }
        if self.read().is_to_be_swept() {
            self.sweep(leased);
        }
        let mut table = self.write();
        // Another thread may have added it.
        if let Some(known) = table.find(name) {
            return known;
        }
        let (id, name) = (table.unused_number(), Arc::<str>::from(name));
        let named = Named { name: Arc::clone(&name), is_recent: AtomicBool::new(false) };
        let holder = named.holder(id);
        table.ids.insert(name, id);
        table.names.insert(id, named);
        holder
    }

    /// The name of a holder, `?` for an unknown one.
    pub fn name(&self, id: u32) -> Arc<str> {
        self.read().names.get(&id).map_or_else(|| Arc::from("?"), |named| Arc::clone(&named.name))
    }

    fn sweep(&self, leased: impl FnOnce() -> HashSet<u32>) {
        let mut table = self.write();
        // Another thread that comes meanwhile then starts no sweep.
        table.left = table.names.len();
        let unused = |(&id, named): (&u32, &Named)| {
            named.is_recent.store(false, Ordering::SeqCst);
            named.is_unused().then_some(id)
        };
        let unused: Vec<u32> = table.names.iter().filter_map(unused).collect();
        drop(table);
        let leased = leased();
        let mut table = self.write();
        for id in unused {
            let goes =
                |named: &Named| named.is_unused() && !named.is_recent.load(Ordering::SeqCst) && !leased.contains(&id);
            if table.names.get(&id).is_some_and(goes)
                && let Some(gone) = table.names.remove(&id)
            {
                table.ids.remove(&gone.name);
            }
        }
        table.left = table.names.len();
        // The capacity shrinks after many names were removed.
        let left = 2 * table.left.max(UNSWEPT_MAX);
        table.names.shrink_to(left);
        table.ids.shrink_to(left);
    }

    fn read(&self) -> RwLockReadGuard<'_, HolderTable> {
        sync::read(&self.0)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HolderTable> {
        sync::write(&self.0)
    }
}

impl HolderTable {
    fn find(&self, name: &str) -> Option<Holder> {
        let id = *self.ids.get(name)?;
        self.names.get(&id).map(|named| named.holder(id))
    }

    /// Sweeps start at twice the number of names after the last one, so that the cost for each new name is bounded.
    fn is_to_be_swept(&self) -> bool {
        self.names.len() >= 2 * self.left.max(UNSWEPT_MAX / 2)
    }

    fn unused_number(&mut self) -> u32 {
        while self.names.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let id = self.next;
        // A removed number is not used again at once, so that late uses of it do not stand for another holder.
        self.next = self.next.wrapping_add(1);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(holders: &Holders) -> usize {
        let table = holders.read();
        assert_eq!(table.ids.len(), table.names.len());
        table.names.len()
    }

    #[test]
    fn unused_names_are_removed() {
        let holders = Holders::default();
        let kept = holders.holder("kept", HashSet::new);
        let leasing = holders.holder("leasing", HashSet::new).id;
        let gone = holders.holder("gone", HashSet::new).id;
        for number in 0..10 * UNSWEPT_MAX {
            let holder = holders.holder(&format!("session {number}"), || HashSet::from([leasing]));
            assert_eq!(*holders.name(holder.id), *holder.name);
            assert!(count(&holders) <= 2 * UNSWEPT_MAX);
        }
        assert_eq!((&*holders.name(kept.id), &*holders.name(leasing)), ("kept", "leasing"));
        assert_eq!(holders.holder("leasing", HashSet::new).id, leasing);
        assert_eq!(&*holders.name(gone), "?");
        assert_ne!(holders.holder("gone", HashSet::new).id, gone, "numbers are not used again at once");
    }

    #[test]
    fn used_names_stay_and_unused_ones_shrink() {
        let holders = Holders::default();
        let all: Vec<Holder> = (0..3 * UNSWEPT_MAX).map(|n| holders.holder(&n.to_string(), HashSet::new)).collect();
        for holder in &all {
            assert_eq!(holders.holder(&holder.name, HashSet::new).id, holder.id);
        }
        drop(all);
        for number in 0..UNSWEPT_MAX * 4 {
            drop(holders.holder(&format!("next {number}"), HashSet::new));
        }
        assert!(count(&holders) <= UNSWEPT_MAX + 1, "{}", count(&holders));
    }

    #[test]
    fn name_that_is_looked_up_during_a_sweep_stays() {
        let holders = Holders::default();
        let returning = holders.holder("returning", HashSet::new).id;
        holders.sweep(|| {
            drop(holders.holder("returning", HashSet::new));
            HashSet::new()
        });
        assert_eq!((&*holders.name(returning), count(&holders)), ("returning", 1));
        holders.sweep(HashSet::new);
        assert_eq!(count(&holders), 0);
    }
}
