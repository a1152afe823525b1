//! Shared tensors that were published before they became shared tensors, such as the results of a computation.

use crate::lifecycle::{Residence, TensorCell};
use crate::shared::SharedTensor;
use crate::state::{Content, TensorState};
use cotensor_core::{Error, ErrorKind, Result, Space};
use cotensor_store::{Lease, Store, SystemClock};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, RwLock};

impl SharedTensor {
    /// The published tensor of `lease`, which lies in `store`, acquired once by the holder of the lease. The tensor stays
    /// without holders only if it was published so. A tensor that the store's configuration does not share is private to
    /// this holder.
    pub fn of_lease(store: Arc<dyn Store>, lease: Lease) -> Self {
        let residence = match (lease.is_private(), lease.is_cached()) {
            (true, _) => Residence::Private,
            (false, true) => Residence::Store,
            (false, false) => Residence::Own,
        };
        let (mut spec, layout, device, id) = (lease.spec(), lease.layout().clone(), lease.device(), lease.id());
        if residence == Residence::Private {
            // Its holder takes the producer's place: only the producer may hold a private tensor.
            spec.producer = lease.holder().to_string();
        }
        let leases = BTreeMap::from([(lease.holder().to_string(), vec![lease])]);
        let state = RwLock::new(TensorState::of_content(Content::Published { id, leases }));
        let (hits, clock) = (AtomicU64::new(0), SystemClock::default());
        Self(Arc::new_cyclic(|tensor| {
            let _registration = TensorCell::register(tensor);
            TensorCell { store, spec, layout, device, wanted: device, residence, hits, clock, state, _registration }
        }))
    }

    /// Whether both are handles of one tensor.
    pub fn is_same(&self, other: &SharedTensor) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The encoder that made the tensor, if one did.
    pub fn space(&self) -> Option<Space> {
        self.0.spec.space
    }

    /// A lease for `model` on the published tensor, beside the acquires, which it does not change.
    ///
    /// # Errors
    /// `Conflict` before it is published, `NotFound` after it was freed, `Refused` for a model other than the producer of a
    /// private tensor.
    pub fn lease_for(&self, model: &str) -> Result<Lease> {
        if self.is_private() && model != self.producer_model() {
            return Err(self.0.private());
        }
        let holder = self.0.store.holder(model);
        let state = self.0.read();
        match &state.content {
            Content::Published { id, .. } => match state.any_lease() {
                Some(lease) => lease.lease_for(&holder),
                None => self.0.store.lease(*id, &holder),
            },
            Content::Writable { .. } => {
                let message = format!("{} is not published yet; another model has to acquire it first", self.name());
                Err(Error::new(ErrorKind::Conflict, message))
            }
            Content::Freed => Err(self.0.freed()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_core::DType;
    use cotensor_store::{CopyReason, LocalStore, Retention, TensorSpec, TensorStore};
    use std::time::Duration;

    fn lease(store: &Arc<LocalStore>, retention: Retention) -> Lease {
        let spec = TensorSpec { retention, producer: "a".into(), ..TensorSpec::new("x", DType::U8, &[2]) };
        let mut reservation = store.reserve(spec, &store.holder("a")).unwrap();
        reservation.write(&[7, 8], CopyReason::Put).unwrap();
        reservation.publish().unwrap()
    }

    #[test]
    fn published_tensor_is_held_by_the_holder_of_its_lease() {
        let store = LocalStore::builder().build();
        let made = lease(&store, Retention::WhileLeased);
        let tensor = SharedTensor::of_lease(Arc::clone(&store) as Arc<dyn Store>, made);
        assert!(tensor.is_published() && tensor.write(|_| ()).is_err());
        tensor.acquire("b").unwrap();
        assert_eq!(tensor.holders(), BTreeMap::from([("a".to_owned(), 1), ("b".to_owned(), 1)]));
        let beside = tensor.lease_for("c").unwrap();
        assert_eq!((beside.bytes().unwrap(), tensor.get_reference_count()), (&[7, 8][..], 2));
        drop(beside);
        tensor.release("a").unwrap();
        assert_eq!(tensor.read(<[u8]>::to_vec).unwrap(), [7, 8]);
        assert_eq!(tensor.release("a").unwrap_err().kind(), ErrorKind::Conflict);
        tensor.release("b").unwrap();
        assert!(tensor.is_freed() && tensor.lease_for("b").unwrap_err().kind() == ErrorKind::NotFound);
    }

    #[test]
    fn cached_tensor_stays_without_holders_until_its_memory_is_needed() {
        let store = LocalStore::builder().max_memory_bytes(3).build();
        let made = lease(&store, Retention::Cached { recompute: Duration::ZERO });
        let tensor = SharedTensor::of_lease(Arc::clone(&store) as Arc<dyn Store>, made);
        tensor.release("a").unwrap();
        assert!(!tensor.is_freed());
        tensor.acquire("b").unwrap();
        tensor.release("b").unwrap();
        drop(store.reserve(TensorSpec::new("y", DType::U8, &[3]), &store.holder("c")).unwrap());
        assert!(tensor.is_freed());
    }

    #[test]
    fn unpublished_tensor_has_no_lease() {
        let tensor = SharedTensor::new("x", &[2], DType::U8, "cpu", "a").unwrap();
        assert_eq!(tensor.lease_for("b").unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(tensor.space(), None);
    }
}
