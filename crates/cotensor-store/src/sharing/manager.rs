use super::{SharedTensor, SharedTensorView};
use crate::{EmbeddedStore, OptimizeReport, Recommendations, Retention, Stats, Store};
use cotensor_core::{DType, Device, Error, ErrorKind, Kind, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Registers tensors that models share, under one memory cap.
///
/// A registered tensor is writable by its producer until another model first gets it. When nobody holds it, it
/// stays until memory is wanted or [`optimize_memory_usage`](TensorSharingManager::optimize_memory_usage) is called.
pub struct TensorSharingManager {
    store: Arc<dyn Store>,
    tensors: Mutex<BTreeMap<String, Registered>>,
}

struct Registered {
    tensor: SharedTensor,
    consumers: BTreeSet<String>,
}

impl TensorSharingManager {
    /// A manager with a store of its own of at most `max_memory_mb` MiB.
    pub fn new(max_memory_mb: u64) -> Self {
        Self::with_store(EmbeddedStore::builder().max_memory_bytes(max_memory_mb.saturating_mul(1 << 20)).build())
    }

    /// A manager over a store that others use too.
    pub fn with_store(store: Arc<dyn Store>) -> Self {
        Self { store, tensors: Mutex::default() }
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Registers a zeroed tensor that `producer_model` holds and may write. `shape` in elements.
    ///
    /// # Errors
    /// `Conflict` when the name is in use, `OverBudget` past the cap, `Refused` by configuration, `Unsupported` for
    /// a storage type that this store does not have.
    pub fn register_shared_tensor(
        &self,
        name: &str,
        shape: &[usize],
        storage_type: &str,
        producer_model: &str,
        consumer_models: &[&str],
        dtype: DType,
    ) -> Result<SharedTensor> {
        let device: Device = storage_type.parse().map_err(|error: Error| error.in_field("storage_type"))?;
        if device != Device::Cpu {
            return Err(Error::unsupported(format!("this store keeps tensors on the cpu, not on {device}"))
                .in_field("storage_type"));
        }
        let mut tensors = self.lock();
        if tensors.get(name).is_some_and(|known| known.tensor.reference_count() > 0) {
            return Err(Error::new(ErrorKind::Conflict, format!("{name:?} is registered and held")).in_field("name"));
        }
        let kind = name.parse().unwrap_or(Kind::Other);
        let retention = Retention::Cached { recompute: Duration::ZERO };
        let store = Arc::clone(&self.store);
        let tensor = SharedTensor::reserve(store, name, shape, dtype, kind, producer_model, retention)?;
        let consumers = consumer_models.iter().map(|model| (*model).to_owned()).collect();
        tensors.insert(name.to_owned(), Registered { tensor: tensor.clone(), consumers });
        Ok(tensor)
    }

    /// The tensor, acquired once for `model`.
    ///
    /// # Errors
    /// `NotFound` when it is not registered, or was freed.
    pub fn get_shared_tensor(&self, name: &str, model: &str) -> Result<SharedTensor> {
        let mut tensors = self.lock();
        let tensor = find(&tensors, name)?;
        if let Err(error) = tensor.acquire(model) {
            if error.kind() == ErrorKind::NotFound {
                tensors.remove(name);
            }
            return Err(error);
        }
        Ok(tensor)
    }

    /// A window on a registered tensor; see [`SharedTensor::create_view`].
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
        let tensor = find(&self.lock(), name)?;
        tensor.create_view(view_name, offset, size)
    }

    /// Acquires a tensor that `from_model` holds for every model of `to_models`.
    ///
    /// # Errors
    /// `Conflict` when `from_model` does not hold it; nothing is acquired then.
    pub fn share_tensor_between_models(
        &self,
        name: &str,
        from_model: &str,
        to_models: &[&str],
    ) -> Result<SharedTensor> {
        let tensor = find(&self.lock(), name)?;
        if !tensor.holders().contains_key(from_model) {
            return Err(Error::new(ErrorKind::Conflict, format!("{from_model:?} does not hold {name}")));
        }
        to_models.iter().try_for_each(|model| tensor.acquire(model))?;
        Ok(tensor)
    }

    /// Releases everything that `model` holds; returns how many acquires that were.
    ///
    /// # Errors
    /// `Io` when a tensor that was never published cannot be sealed.
    pub fn release_model_tensors(&self, model: &str) -> Result<u32> {
        let mut released = 0;
        for registered in self.lock().values() {
            for _ in 0..registered.tensor.holders().get(model).copied().unwrap_or(0) {
                registered.tensor.release(model)?;
                released += 1;
            }
        }
        Ok(released)
    }

    /// Frees every tensor that nobody holds.
    pub fn optimize_memory_usage(&self) -> OptimizeReport {
        let report = self.store.optimize();
        self.lock().retain(|_, registered| registered.tensor.reference_count() > 0);
        report
    }

    /// The counters.
    pub fn get_stats(&self) -> Stats {
        self.store.stats()
    }

    /// Bytes of a registered tensor.
    ///
    /// # Errors
    /// `NotFound` when it is not registered.
    pub fn get_tensor_memory_usage(&self, name: &str) -> Result<usize> {
        find(&self.lock(), name).map(|tensor| tensor.size_bytes())
    }

    /// Bytes of all tensors that `model` holds, each counted once.
    pub fn get_model_memory_usage(&self, model: &str) -> usize {
        let tensors = self.lock();
        let held = tensors.values().filter(|registered| registered.tensor.holders().contains_key(model));
        held.map(|registered| registered.tensor.size_bytes()).sum()
    }

    /// For every registered tensor, the models that were named as its consumers and do not hold it yet.
    pub fn analyze_sharing_opportunities(&self) -> BTreeMap<String, Vec<String>> {
        let tensors = self.lock();
        let open = |registered: &Registered| -> Vec<String> {
            let holders = registered.tensor.holders();
            registered.consumers.iter().filter(|model| !holders.contains_key(*model)).cloned().collect()
        };
        tensors
            .iter()
            .map(|(name, registered)| (name.clone(), open(registered)))
            .filter(|(_, models)| !models.is_empty())
            .collect()
    }

    /// What could be saved, and where.
    pub fn get_optimization_recommendations(&self) -> Recommendations {
        self.store.recommendations()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Registered>> {
        self.tensors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn find(tensors: &BTreeMap<String, Registered>, name: &str) -> Result<SharedTensor> {
    let known = tensors.get(name).map(|registered| registered.tensor.clone());
    known.ok_or_else(|| Error::not_found(format!("no tensor is registered as {name:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manager() -> TensorSharingManager {
        TensorSharingManager::new(1)
    }

    #[test]
    fn a_tensor_from_registration_to_optimization() {
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
        assert_eq!(manager.optimize_memory_usage().freed_tensors_count, 0, "what is held stays");
        assert_eq!(manager.release_model_tensors("bert").unwrap(), 1);
        assert_eq!(manager.release_model_tensors("t5").unwrap(), 1);
        let report = manager.optimize_memory_usage();
        assert_eq!((report.freed_tensors_count, report.freed_memory_bytes, report.current_memory_bytes), (1, 3072, 0));
        assert_eq!((report.memory_reduction_percent, report.remaining_tensor_count), (100.0, 0));
        assert_eq!(report.freed_tensors, ["bert_embedding"]);
        assert_eq!(manager.get_shared_tensor("bert_embedding", "t5").unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn an_unheld_tensor_can_be_got_again_until_it_is_freed() {
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
    fn the_cap_is_enforced_and_eviction_makes_room() {
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
    fn bad_calls_are_errors() {
        let manager = manager();
        let register = |name, storage| manager.register_shared_tensor(name, &[2], storage, "m", &[], DType::F32);
        assert_eq!(register("x", "webgpu").unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(register("x", "floppy").unwrap_err().kind(), ErrorKind::Invalid);
        register("x", "cpu").unwrap();
        assert_eq!(register("x", "cpu").unwrap_err().kind(), ErrorKind::Conflict);
        assert!(manager.share_tensor_between_models("x", "stranger", &["n"]).is_err());
        manager.share_tensor_between_models("x", "m", &["n", "o"]).unwrap();
        assert_eq!(manager.get_shared_tensor("x", "n").unwrap().reference_count(), 4);
    }
}
