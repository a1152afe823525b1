//! Making room: what nobody leases goes, or goes to disk, and an error says who holds the rest.

use crate::EmbeddedStore;
use crate::TensorSpec;
use crate::backend::LeaseBackend;
use crate::budget::{Budget, Charge, TensorCharge};
use crate::eviction::{Group, candidates, charged_bytes};
use cotensor_core::{Device, Error, ErrorKind, Result, size};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often a reservation looks again for memory that is on its way back: over a second in all.
#[cfg(not(target_family = "wasm"))]
pub(crate) const ROUNDS_MAX: u32 = 10_000;
/// On one thread nobody else is on the way.
#[cfg(target_family = "wasm")]
pub(crate) const ROUNDS_MAX: u32 = 2;

/// For what is known about tensors, this part of the budget is freed at a time, and at most so many bytes: where there are
/// many tensors, looking for those that can go takes long.
const METADATA_AT_ONCE: (u64, u64) = (256, 256 << 10);

/// What is to be made room for.
#[derive(Clone, Copy)]
pub(crate) enum Want {
    /// Memory: of segments that stay, tensors go last, because they give back next to nothing.
    Memory,
    /// Memory for what was spilled. Where others cannot be spilled for it, they change places with it, and none is dropped.
    Restored,
    /// What is known about one more tensor.
    Metadata,
}

/// Lets others run: at first for as short as can be.
pub(crate) fn pause(round: u32) {
    if round < 100 || cfg!(target_family = "wasm") {
        std::thread::yield_now();
    } else {
        std::thread::sleep(Duration::from_micros(100));
    }
}

impl EmbeddedStore {
    /// Takes `bytes` from the budget of `device`. Evicts unleased tensors if that makes enough room, else none.
    pub(crate) fn charge(&self, device: Device, bytes: u64) -> Result<Arc<Charge>> {
        let budget = self.devices.budget(device)?;
        self.taken(budget, bytes, Want::Memory, || budget.take(bytes))
    }

    /// The same for what was spilled.
    pub(crate) fn restored_charge(&self, device: Device, bytes: u64) -> Result<Arc<Charge>> {
        let budget = self.devices.budget(device)?;
        self.taken(budget, bytes, Want::Restored, || budget.take(bytes))
    }

    /// The same of what is known about a tensor of `segment`.
    pub(crate) fn tensor_charge(&self, segment: &Arc<Charge>, spec: &TensorSpec) -> Result<TensorCharge> {
        self.metadata_charge(segment, self.metadata_of(spec))
    }

    /// The same where that takes `bytes`.
    pub(crate) fn metadata_charge(&self, segment: &Arc<Charge>, bytes: u64) -> Result<TensorCharge> {
        let budget = self.devices.host();
        self.taken(budget, bytes, Want::Metadata, || budget.take_metadata(segment, bytes))
    }

    /// What is known about a tensor, in bytes.
    pub(crate) fn metadata_of(&self, spec: &TensorSpec) -> u64 {
        self.devices.host().metadata_of(spec.text_bytes(), spec.shape.len())
    }

    fn taken<T>(&self, budget: &Arc<Budget>, bytes: u64, want: Want, take: impl Fn() -> Option<T>) -> Result<T> {
        for round in 0..ROUNDS_MAX {
            if let Some(charge) = take() {
                return Ok(charge);
            }
            if !budget.will_fit(bytes, 0) && !self.evict(budget, bytes, want)? {
                break;
            }
            if round > 0 {
                // A closed tensor goes with the last who touched it: another thread may be between giving its lease
                // back and letting go.
                pause(round);
            }
        }
        take().ok_or_else(|| self.over_budget(budget, bytes))
    }

    /// Evicts until `bytes` will fit `budget`; false, and nothing goes, when all that nobody leases would not make the room.
    ///
    /// # Errors
    /// `OverBudget` when what would have to be spilled cannot be.
    pub(crate) fn evict(&self, budget: &Arc<Budget>, bytes: u64, want: Want) -> Result<bool> {
        let mut outcome = Ok(false);
        self.with_unleased(&mut |mut groups| {
            let goal = match want {
                Want::Memory | Want::Restored => {
                    groups.sort_by_key(|group| group.in_part);
                    bytes
                }
                Want::Metadata => bytes.max(METADATA_AT_ONCE.1.min(budget.max() / METADATA_AT_ONCE.0)),
            };
            // Only tensors of its own device give a device memory back. To the host, the others give their metadata: they
            // go last.
            groups.retain(|group| budget.device().is_host() || group.is_of(budget));
            groups.sort_by_key(|group| !group.is_of(budget));
            // Others may have given memory back, or taken what was given, since the last look.
            let fits = || budget.will_fit(bytes, 0);
            let mut enough = || budget.will_fit(goal, 0);
            let freed = groups.iter().map(|group| self.freed_by(group, budget)).sum();
            outcome = match budget.will_fit(bytes, freed) {
                false => Ok(fits()),
                true => match self.shed(groups, &mut enough, !matches!(want, Want::Restored)) {
                    Err(error) if !fits() => Err(self.not_spilled(budget, bytes, &error)),
                    _ => Ok(true),
                },
            };
        });
        outcome
    }

    /// What comes back to `budget` when a group goes: of what is spilled, all that is known about it stays.
    fn freed_by(&self, group: &Group, budget: &Arc<Budget>) -> u64 {
        let is_spilled = self.spilling.is_some() && group.worth_spilling().is_some();
        let memory = if group.is_of(budget) { group.bytes } else { 0 };
        memory + if is_spilled || !budget.device().is_host() { 0 } else { group.metadata }
    }

    /// Evicts, or spills where tensors are, what nobody leases until there is `enough` of whatever is wanted: one segment
    /// after the other, in the order in which they go when memory is wanted. Whether there is.
    ///
    /// # Errors
    /// What kept one from being spilled, when there is not enough without it.
    pub fn shed_until(&self, enough: &mut dyn FnMut() -> bool) -> Result<bool> {
        let mut outcome = Ok(false);
        self.with_unleased(&mut |groups| outcome = self.shed(groups, enough, true));
        outcome
    }

    /// Gives `work` what nobody leases in the order in which it goes, while nobody else makes room.
    pub(crate) fn with_unleased(&self, work: &mut dyn FnMut(Vec<Group>)) {
        let Some(spilling) = &self.spilling else {
            let mut survey = self.names.survey();
            let groups = candidates(std::mem::take(&mut survey.records));
            return work(groups);
        };
        spilling.spill.blocking(&mut || {
            let _turn = spilling.turn();
            let mut groups = candidates(std::mem::take(&mut self.names.survey().records));
            // What is spilled is lost to nobody; a part of a segment can only be dropped.
            groups.retain(|group| !group.in_part);
            work(groups);
        });
    }

    /// Evicts or spills `groups` in their order until there is `enough`. Where spilling fails, those that can be made again are
    /// dropped if they `may_drop`; the others always stay.
    ///
    /// # Errors
    /// What kept one from being spilled, when there is not enough without it.
    pub(crate) fn shed(&self, groups: Vec<Group>, enough: &mut dyn FnMut() -> bool, may_drop: bool) -> Result<bool> {
        let mut failed: Option<Error> = None;
        let mut unspilled = Vec::new();
        for group in groups {
            if enough() {
                return Ok(true);
            }
            match (&self.spilling, group.worth_spilling()) {
                (Some(spilling), Some(segment)) => {
                    // Where one had no room, a smaller one may; after other failures the rest may be dropped still.
                    if failed.as_ref().is_none_or(|error| error.kind() == ErrorKind::OverBudget) {
                        match self.put_away(spilling, &group, segment) {
                            Ok(_) => continue,
                            Err(error) => failed = Some(error),
                        }
                    }
                    unspilled.push(group);
                }
                _ => self.evict_group(&group),
            }
        }
        // A full disk must not stop everything else: what can be made again is dropped, and the rest stays.
        for group in unspilled.iter().filter(|group| may_drop && !group.recompute.is_zero()) {
            if enough() {
                return Ok(true);
            }
            self.evict_group(group);
        }
        match (enough(), failed) {
            (false, Some(error)) => Err(error),
            (done, _) => Ok(done),
        }
    }

    fn evict_group(&self, group: &Group) {
        if group.close() {
            self.counters.evictions.fetch_add(group.records.len() as u64, Ordering::Relaxed);
            self.counters.evicted_bytes.fetch_add(group.bytes, Ordering::Relaxed);
            self.drop_closed(&group.records);
        }
    }

    pub(crate) fn over_budget(&self, budget: &Arc<Budget>, bytes: u64) -> Error {
        let survey = self.names.survey();
        let mut by_holder: HashMap<u32, u64> = HashMap::new();
        let on_device: Vec<_> =
            survey.records.iter().filter(|record| Arc::ptr_eq(record.charge.segment().budget(), budget)).collect();
        for record in &on_device {
            for (holder, _) in record.leases.holders() {
                *by_holder.entry(holder).or_default() += record.layout.size_bytes() as u64;
            }
        }
        let (used, max, metadata) = (budget.total(), budget.max(), budget.metadata());
        let unlisted = budget.used().saturating_sub(charged_bytes(on_device.iter().copied()));
        let mut held: Vec<(u64, String)> =
            by_holder.into_iter().map(|(holder, bytes)| (bytes, self.holder_name(holder).to_string())).collect();
        held.sort_unstable_by(|a, b| b.cmp(a));
        let mut held: Vec<String> =
            held.iter().take(5).map(|(bytes, name)| format!("{name} holds {}", size(*bytes))).collect();
        if unlisted > 0 {
            held.push(format!("what is private, reserved or a slab without a tensor holds {}", size(unlisted)));
        }
        if metadata > 0 {
            held.push(format!("names and leases of {} tensors take {}", survey.records.len(), size(metadata)));
        }
        held.extend(self.observer.as_ref().and_then(|observer| observer.retained_memory()));
        let held = if held.is_empty() { "nothing is leased".to_owned() } else { held.join(", ") };
        Error::new(
            ErrorKind::OverBudget,
            format!(
                "{} do not fit the {}budget of {}, of which {} are in use ({held})",
                size(bytes),
                if budget.device().is_host() { String::new() } else { format!("{} ", budget.device()) },
                size(max),
                size(used)
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Retention, StoreReports, TensorSpec, TensorStore};
    use cotensor_core::DType;

    fn spec(name: &str, bytes: usize) -> TensorSpec {
        TensorSpec {
            retention: Retention::Cached { recompute: Duration::ZERO },
            ..TensorSpec::new(name, DType::U8, &[bytes])
        }
    }

    /// Another thread has given its lease back and not let go of the tensor yet.
    #[test]
    fn memory_on_its_way_back_is_waited_for() {
        let store = EmbeddedStore::builder().max_memory_bytes(100).build();
        let holder = store.holder("m");
        let lease = store.reserve(spec("a", 100), &holder).unwrap().publish().unwrap();
        let touched = Arc::clone(&lease.record);
        drop(lease);
        let (evicted, seen) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // Lets go only once the eviction was seen, and some.
                seen.recv().unwrap();
                std::thread::sleep(Duration::from_millis(30));
                drop(touched);
            });
            scope.spawn(|| {
                while store.stats().total_tensors > 0 {
                    std::thread::yield_now();
                }
                evicted.send(()).unwrap();
            });
            store.reserve(spec("b", 100), &holder).unwrap();
        });
        assert_eq!((store.stats().evictions, store.stats().memory_usage_bytes), (1, 0));
    }
}
