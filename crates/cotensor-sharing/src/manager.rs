//! `TensorSharingManager`: registers tensors by name and lets models share them.

use crate::lifecycle::{Residence, Via, WriteMode};
use crate::shared::SharedTensor;
use crate::spec::spec;
use crate::view::SharedTensorView;
use cotensor_core::sync::lock;
use cotensor_core::{DType, Device, Error, ErrorKind, Kind, Result};
use cotensor_store::{LocalStore, Retention, Store};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// The smallest number of tensors at which the registry is pruned.
const PRUNED_FROM: usize = 64;

/// Returns the kinds of tensor that the named model produces, the main kind first; empty for an unknown model.
type KindsOf = dyn Fn(&str) -> Vec<Kind> + Send + Sync;

/// Registers tensors that models share, under one memory cap.
///
/// The producer may write a registered tensor until another model first acquires it. A tensor without holders stays
/// until the store needs its memory or [`optimize_memory_usage`](TensorSharingManager::optimize_memory_usage) is
/// called. A tensor that the store's configuration does not share is registered too; it is private to its producer.
pub struct TensorSharingManager {
    pub(crate) store: Arc<dyn Store>,
    kinds_of: Box<KindsOf>,
    mode: WriteMode,
    registry: Mutex<Registry>,
    /// Lookups of unpublished tensors, which the store does not count.
    pub(crate) hits: AtomicU64,
    /// Lookups of unregistered names, which the store does not count.
    pub(crate) misses: AtomicU64,
}

#[derive(Default)]
pub(crate) struct Registry {
    pub(crate) tensors: BTreeMap<String, Registered>,
    /// The number of tensors at which the registry is pruned next.
    prune_at: usize,
}

pub(crate) struct Registered {
    pub(crate) tensor: SharedTensor,
    pub(crate) consumers: BTreeSet<String>,
}

/// A tensor to register.
#[derive(Clone, Copy, Debug)]
pub struct Registration<'a> {
    /// Its name.
    pub name: &'a str,
    /// Dimensions, in elements.
    pub shape: &'a [usize],
    /// The element type; by default `float32`.
    pub dtype: DType,
    /// The name of a device; by default `cpu`.
    pub storage_type: &'a str,
    /// The model that holds the tensor and may write it.
    pub producer_model: &'a str,
    /// The models that are expected to acquire it; by default none.
    pub consumer_models: &'a [&'a str],
    /// The kind. By default the one that the name ends with (`bert_text_embedding`); else one that both the producer and a
    /// consumer produce; else the producer's main kind; else `other`.
    pub kind: Option<Kind>,
}

impl<'a> Registration<'a> {
    /// A tensor with the defaults of the other fields.
    pub fn new(name: &'a str, shape: &'a [usize], producer_model: &'a str) -> Self {
        let (dtype, storage_type) = (DType::F32, "cpu");
        Self { name, shape, dtype, storage_type, producer_model, consumer_models: &[], kind: None }
    }
}

impl TensorSharingManager {
    /// A manager with its own store of at most `max_memory_mb` MiB.
    pub fn new(max_memory_mb: u64) -> Self {
        Self::with_store(LocalStore::builder().max_memory_bytes(max_memory_mb.saturating_mul(1 << 20)).build())
    }

    /// A manager over an existing store.
    pub fn with_store(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            kinds_of: Box::new(|_| Vec::new()),
            mode: WriteMode::InPlace,
            registry: Mutex::default(),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    /// Sets the function that infers a tensor's kind from the models that share it. `kinds_of` maps a model's name to
    /// the kinds that it produces, the main kind first; empty for an unknown model.
    #[must_use]
    pub fn with_model_kinds(mut self, kinds_of: impl Fn(&str) -> Vec<Kind> + Send + Sync + 'static) -> Self {
        self.kinds_of = Box::new(kinds_of);
        self
    }

    /// Registers tensors in aliased memory, so that producers may keep its address, for example in arrays of another
    /// language; see [`SharedTensorView::memory`].
    #[must_use]
    pub fn with_aliased_memory(mut self) -> Self {
        self.mode = WriteMode::ByAddress;
        self
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Registers a zeroed tensor that `producer_model` holds and may write. `shape` is in elements. The kind is that of
    /// [`Registration::kind`]'s default.
    ///
    /// # Errors
    /// As [`register`](TensorSharingManager::register).
    pub fn register_shared_tensor(
        &self,
        name: &str,
        shape: &[usize],
        storage_type: &str,
        producer_model: &str,
        consumer_models: &[&str],
        dtype: DType,
    ) -> Result<SharedTensor> {
        self.register(&Registration {
            storage_type,
            consumer_models,
            dtype,
            ..Registration::new(name, shape, producer_model)
        })
    }

    /// As [`register_shared_tensor`](Self::register_shared_tensor), with options. Replaces a tensor of the same
    /// name that has no holder; its memory is freed when the store needs memory or the new tensor is published.
    ///
    /// # Errors
    /// `Conflict` while the name is registered and a model or a view holds it, `OverBudget` past the cap, `Invalid` for an
    /// impossible shape, `Unsupported` for a device that this store does not have ([`Device::storage`]).
    pub fn register(&self, registration: &Registration<'_>) -> Result<SharedTensor> {
        let Registration { name, shape, dtype, storage_type, producer_model, consumer_models, kind } = *registration;
        let kind = kind.unwrap_or_else(|| self.kind_of(name, producer_model, consumer_models));
        let wanted = Device::Cpu.storage(storage_type)?;
        let held = || Error::new(ErrorKind::Conflict, format!("{name:?} is registered and held")).in_field("name");
        let mut registry = self.lock();
        if registry.tensors.get(name).is_some_and(|known| !known.tensor.0.is_idle()) {
            return Err(held());
        }
        registry.prune_if_grown();
        let retention = Retention::Cached { recompute: Duration::ZERO };
        let spec = spec(name, shape, dtype, kind, producer_model, retention);
        let store = || Arc::clone(&self.store);
        let tensor = match SharedTensor::managed(store(), spec.clone(), wanted, Residence::Store, self.mode) {
            Err(error) if error.kind() == ErrorKind::Refused => {
                SharedTensor::managed(store(), spec, wanted, Residence::Private, self.mode)?
            }
            registered => registered?,
        };
        // A handle may have acquired the old tensor meanwhile.
        if registry.tensors.get(name).is_some_and(|known| !known.tensor.0.retire()) {
            return Err(held());
        }
        let consumers = consumer_models.iter().map(|model| (*model).to_owned()).collect();
        registry.tensors.insert(name.to_owned(), Registered { tensor: tensor.clone(), consumers });
        Ok(tensor)
    }

    /// Finds a tensor and acquires it once for `model`.
    ///
    /// # Errors
    /// `NotFound` when it is not registered, or was freed; `Refused` for a model other than the producer when the
    /// configuration keeps it private.
    pub fn get_shared_tensor(&self, name: &str, model: &str) -> Result<SharedTensor> {
        let mut registry = self.lock();
        let Ok(tensor) = registry.find(name) else {
            self.misses.fetch_add(1, Ordering::Relaxed);
            return Err(unregistered(name));
        };
        match tensor.0.acquire(&[model], None, Via::Name) {
            // The store counts lookups of published tensors.
            Ok(()) if tensor.is_published() => {}
            Ok(()) => drop(self.hits.fetch_add(1, Ordering::Relaxed)),
            Err(error) => {
                if error.kind() == ErrorKind::NotFound {
                    registry.tensors.remove(name);
                } else {
                    self.misses.fetch_add(1, Ordering::Relaxed);
                }
                return Err(error);
            }
        }
        Ok(tensor)
    }

    /// A view of a part of a registered tensor; see [`SharedTensor::create_view`].
    ///
    /// # Errors
    /// As [`SharedTensor::create_view`].
    pub fn create_tensor_view(
        &self,
        name: &str,
        view_name: &str,
        offset: &[usize],
        size: &[usize],
    ) -> Result<SharedTensorView> {
        self.lock().find(name)?.create_view(view_name, offset, size)
    }

    /// Acquires a tensor that `from_model` holds for every model of `to_models`, or for none.
    ///
    /// # Errors
    /// `NotFound` when it is not registered, `Conflict` when `from_model` does not hold it, `Refused` when the
    /// configuration keeps it private.
    pub fn share_tensor_between_models(
        &self,
        name: &str,
        from_model: &str,
        to_models: &[&str],
    ) -> Result<SharedTensor> {
        let tensor = self.lock().find(name)?;
        tensor.0.acquire(to_models, Some(from_model), Via::Handle)?;
        Ok(tensor)
    }

    /// Releases all tensors that `model` holds. Returns the number of released acquires.
    ///
    /// # Errors
    /// `Io` when an unpublished tensor could not be sealed and was freed. The other tensors are still released.
    pub fn release_model_tensors(&self, model: &str) -> Result<u32> {
        let (mut released, mut outcome) = (0, Ok(()));
        for registered in self.lock().tensors.values() {
            let (count, settled) = registered.tensor.0.release_all(model);
            released += count;
            outcome = outcome.and(settled);
        }
        outcome.map(|()| released)
    }

    /// The size of a registered tensor in bytes.
    ///
    /// # Errors
    /// `NotFound` when it is not registered, or was freed.
    pub fn get_tensor_memory_usage(&self, name: &str) -> Result<usize> {
        let tensor = self.lock().find(name)?;
        if tensor.is_freed() { Err(unregistered(name)) } else { Ok(tensor.size_bytes()) }
    }

    /// The size of all tensors that `model` holds in bytes. A tensor counts once.
    pub fn get_model_memory_usage(&self, model: &str) -> usize {
        let registry = self.lock();
        let held = registry.tensors.values().filter(|registered| registered.tensor.is_held_by(model));
        held.map(|registered| registered.tensor.size_bytes()).sum()
    }

    fn kind_of(&self, name: &str, producer: &str, consumers: &[&str]) -> Kind {
        if let Some(kind) = kind_named(name) {
            return kind;
        }
        let made = (self.kinds_of)(producer);
        let wanted: Vec<Kind> = consumers.iter().flat_map(|model| (self.kinds_of)(model)).collect();
        made.iter().find(|kind| wanted.contains(kind)).or(made.first()).copied().unwrap_or(Kind::Other)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Registry> {
        lock(&self.registry)
    }
}

impl Registry {
    fn find(&self, name: &str) -> Result<SharedTensor> {
        self.tensors.get(name).map(|registered| registered.tensor.clone()).ok_or_else(|| unregistered(name))
    }

    /// Removes tensors that were evicted or freed.
    pub(crate) fn prune(&mut self) {
        self.tensors.retain(|_, registered| registered.tensor.0.is_live());
        self.prune_at = (2 * self.tensors.len()).max(PRUNED_FROM);
    }

    /// Prunes when the number of tensors has doubled, so that names of freed tensors do not accumulate.
    fn prune_if_grown(&mut self) {
        if self.tensors.len() >= self.prune_at.max(PRUNED_FROM) {
            self.prune();
        }
    }
}

fn unregistered(name: &str) -> Error {
    Error::not_found(format!("no tensor is registered as {name:?}"))
}

/// The kind that `name` equals, or ends with after a separator. Never `weight`: weights are exempt from the
/// configuration.
fn kind_named(name: &str) -> Option<Kind> {
    let shared = Kind::ALL.iter().copied().filter(|kind| !matches!(kind, Kind::Weight | Kind::Other));
    let ends = |kind: &Kind| name.strip_suffix(kind.name()).is_some_and(|rest| !rest.ends_with(char::is_alphanumeric));
    shared.into_iter().find(ends)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manager() -> TensorSharingManager {
        TensorSharingManager::new(1)
    }

    #[test]
    fn optimize_frees_a_released_tensor() {
        let manager = manager();
        let tensor = manager
            .register_shared_tensor("bert_embedding", &[1, 768], "cpu", "bert", &["t5", "llama"], DType::F32)
            .unwrap();
        tensor.write(|bytes| bytes.fill(1)).unwrap();
        assert_eq!(manager.analyze_sharing_opportunities()["bert_embedding"], ["llama", "t5"]);
        let seen = manager.get_shared_tensor("bert_embedding", "t5").unwrap();
        assert_eq!(seen.read(|bytes| bytes[3071]).unwrap(), 1);
        assert_eq!(manager.get_model_memory_usage("t5"), 3072);
        assert_eq!(manager.get_tensor_memory_usage("bert_embedding").unwrap(), 3072);
        let stats = manager.get_stats();
        assert_eq!((stats.total_tensors, stats.total_models, stats.memory_usage_bytes), (1, 2, 3072));
        assert_eq!((stats.unshared_bytes, stats.saved_bytes), (6144, 3072), "two models hold one tensor");
        assert_eq!(manager.optimize_memory_usage().freed_tensors_count, 0, "held tensors stay");
        assert_eq!(manager.release_model_tensors("bert").unwrap(), 1);
        assert_eq!(manager.release_model_tensors("t5").unwrap(), 1);
        let report = manager.optimize_memory_usage();
        assert_eq!((report.freed_tensors_count, report.freed_memory_bytes, report.current_memory_bytes), (1, 3072, 0));
        assert_eq!((report.memory_reduction_percent, report.remaining_tensor_count), (100.0, 0));
        assert_eq!(report.freed_tensors, ["bert_embedding"]);
        assert_eq!(manager.get_shared_tensor("bert_embedding", "t5").unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn tensor_without_holders_can_be_acquired_until_freed() {
        let manager = manager();
        manager
            .register_shared_tensor("x", &[4], "cpu", "a", &[], DType::U8)
            .unwrap()
            .write(|bytes| bytes[0] = 9)
            .unwrap();
        manager.release_model_tensors("a").unwrap();
        let again = manager.get_shared_tensor("x", "b").unwrap();
        assert_eq!(again.read(|bytes| bytes[0]).unwrap(), 9);
    }

    #[test]
    fn memory_cap_is_enforced_by_eviction() {
        let manager = manager();
        let big = 700 << 10;
        manager.register_shared_tensor("a", &[big], "cpu", "m", &[], DType::U8).unwrap();
        let error = manager.register_shared_tensor("b", &[big], "cpu", "n", &[], DType::U8).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OverBudget);
        manager.release_model_tensors("m").unwrap();
        manager.register_shared_tensor("b", &[big], "cpu", "n", &[], DType::U8).unwrap();
        assert_eq!(manager.get_stats().evictions, 1);
    }

    #[test]
    fn invalid_calls_return_errors() {
        let manager = manager();
        let register = |name, storage| manager.register_shared_tensor(name, &[2], storage, "m", &[], DType::F32);
        assert_eq!(register("x", "cuda").unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(register("x", "floppy").unwrap_err().kind(), ErrorKind::Invalid);
        register("x", "cpu").unwrap();
        assert_eq!(register("x", "cpu").unwrap_err().kind(), ErrorKind::Conflict);
        assert!(manager.share_tensor_between_models("x", "stranger", &["n"]).is_err());
        manager.share_tensor_between_models("x", "m", &["n", "o"]).unwrap();
        assert_eq!(manager.get_shared_tensor("x", "n").unwrap().get_reference_count(), 4);
    }
}
