//! Results that are computed once and kept in a store.

use super::outputs::{Computation, StoreOutputs, values};
use crate::engine::{Output, OutputAllocator};
use crate::tensor::Value;
use cotensor_core::Result;
use cotensor_store::Claim;

/// Claims the key of a computation; if no other caller has the results, computes and publishes them. Returns the
/// results, and whether this call computed them.
///
/// If the sharing configuration refuses the kind, the call does not claim the key: it would wait for the result of
/// another caller, which stays private.
pub(crate) fn compute_once(
    computation: &Computation<'_>,
    compute: impl FnOnce(&dyn OutputAllocator) -> Result<Vec<Output>>,
) -> Result<(Vec<Value>, bool)> {
    let Computation { store, key, kind, holder, .. } = computation;
    let ticket = if store.config().refuses(*kind, 0).is_some() {
        None
    } else {
        match store.claim(key, holder)? {
            Claim::Ready(leases) => return Ok((values(leases), false)),
            Claim::Compute(ticket) => Some(ticket),
        }
    };
    let outputs = StoreOutputs::new(computation, ticket.is_none());
    let computed = compute(&outputs)?;
    Ok((outputs.publish(computed, ticket)?, true))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::OutputSpec;
    use crate::tensor::Array;
    use cotensor_core::testing::FakeDevice;
    use cotensor_core::{ContentHash, DType, Device, ErrorKind, Kind};
    use cotensor_store::{CopyReason, Key, LocalStore, SharingConfig, Store, StoreReports, TensorStore};
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    fn once(
        store: &dyn Store,
        compute: impl FnOnce(&dyn OutputAllocator) -> Result<Vec<Output>>,
    ) -> Result<(Vec<Value>, bool)> {
        let labels = ["a".to_owned(), "b".to_owned()];
        let (key, holder) = (Key(ContentHash::of(b"k")), store.holder("m"));
        let computation = Computation { store, key, space: None, kind: Kind::Other, labels: &labels, holder: &holder };
        compute_once(&computation, compute)
    }

    /// Two outputs, of 40 and of 8 bytes, in memory of the engine.
    fn arrays(_: &dyn OutputAllocator) -> Result<Vec<Output>> {
        Ok(vec![Array::f32([10], vec![1.5; 10])?.into(), Array::i64([1], vec![7])?.into()])
    }

    /// The same outputs in memory of the store.
    fn in_place(allocator: &dyn OutputAllocator) -> Result<Vec<Output>> {
        let outputs = arrays(allocator)?.into_iter().enumerate().rev().map(|(index, output)| {
            let array = output.into_array()?;
            let spec = OutputSpec { index, dtype: array.dtype(), shape: array.shape(), device: Device::Cpu };
            let mut reservation = allocator.allocate(&spec)?.expect("the store has memory");
            reservation.bytes_mut().expect("host memory").copy_from_slice(array.bytes());
            Ok(Output::Reserved(reservation))
        });
        let mut outputs = outputs.collect::<Result<Vec<_>>>()?;
        outputs.reverse();
        Ok(outputs)
    }

    fn store(config: SharingConfig, max_memory_bytes: u64) -> Arc<LocalStore> {
        LocalStore::builder().config(config).max_memory_bytes(max_memory_bytes).build()
    }

    fn copied(store: &LocalStore, reason: CopyReason) -> u64 {
        let copies = store.stats().copies;
        copies.iter().find(|copies| copies.reason == reason.name()).map_or(0, |copies| copies.bytes)
    }

    #[test]
    fn refused_results_are_charged_counted_and_freed() {
        let disabled = SharingConfig { enable_shared_tensors: false, ..SharingConfig::default() };
        let large = SharingConfig { max_shared_tensor_size_bytes: Some(20), ..SharingConfig::default() };
        for (config, refused) in [(disabled, 2), (large, 1)] {
            for compute in [arrays, in_place] {
                let tight = store(config.clone(), 47);
                assert_eq!(once(&*tight, compute).err().unwrap().kind(), ErrorKind::OverBudget);
                let store = store(config.clone(), 48);
                let (values, computed) = once(&*store, compute).unwrap();
                assert!(computed && *values[0].to_f32().unwrap() == [1.5; 10] && values[1].as_i64().unwrap() == [7]);
                let stats = store.stats();
                assert_eq!(stats.memory_usage_bytes, 48);
                assert_eq!(stats.refused.values().sum::<u64>(), refused);
                assert_eq!(store.get("a/", &store.holder("m")).unwrap_err().kind(), ErrorKind::NotFound);
                drop(values);
                assert_eq!(store.stats().memory_usage_bytes, 0);
                assert!(once(&*store, compute).unwrap().1, "no other call gets a refused result");
            }
        }
    }

    #[test]
    fn outputs_in_place_are_not_copied_and_arrays_are() {
        for (compute, bytes) in [(arrays as fn(&dyn OutputAllocator) -> _, 48), (in_place, 0)] {
            let store = store(SharingConfig::default(), u64::MAX);
            let (values, _) = once(&*store, compute).unwrap();
            assert_eq!((values[0].dtype(), values[1].as_i64().unwrap()), (DType::F32, &[7][..]));
            assert_eq!(copied(&store, CopyReason::Preprocessed), bytes);
            let (again, computed) = once(&*store, compute).unwrap();
            assert!(!computed && again[1].lease().unwrap().id() == values[1].lease().unwrap().id());
        }
    }

    #[test]
    fn device_outputs_stay_on_the_device() {
        let device = FakeDevice::default();
        let store = LocalStore::builder().memory(Arc::new(device.clone())).build();
        let kernel = |allocator: &dyn OutputAllocator| {
            let spec = OutputSpec { index: 0, dtype: DType::F16, shape: &[2], device: Device::Fake(0) };
            let mut reservation = allocator.allocate(&spec)?.expect("the store has memory on the device");
            assert!(reservation.bytes_mut().is_none(), "the host cannot address it");
            // The copy to the fake device stands for a kernel that writes there.
            reservation.write(&[0, 0x3c, 0, 0xc0], CopyReason::DeviceTransfer)?;
            allocator.record_conversion("x", 8);
            Ok(vec![Output::Reserved(reservation)])
        };
        let (values, computed) = once(&*store, kernel).unwrap();
        assert!(computed);
        let tensor = values[0].tensor().unwrap();
        assert_eq!((tensor.device(), tensor.dtype(), tensor.shape()), (Device::Fake(0), DType::F16, &[2][..]));
        assert!(tensor.bytes().is_none() && values[0].to_f32().is_err());
        let memory = tensor.device_memory().unwrap();
        let mut bytes = [0; 4];
        memory.segment.read_at(memory.offset_bytes, &mut bytes).unwrap();
        assert_eq!(bytes, [0, 0x3c, 0, 0xc0]);
        assert_eq!(copied(&store, CopyReason::EngineConversion), 8);
        assert_eq!(device.live_bytes(), 4);
    }

    #[test]
    fn call_does_not_wait_for_a_result_that_stays_private() {
        let config = SharingConfig { enable_shared_tensors: false, ..SharingConfig::default() };
        let store = store(config, u64::MAX);
        once(&*store, |allocator| {
            // The second call finishes while the first one computes.
            let (finished, second) = channel();
            let other = Arc::clone(&store);
            std::thread::spawn(move || finished.send(once(&*other, arrays).is_ok()));
            assert_eq!(second.recv_timeout(Duration::from_secs(60)), Ok(true));
            arrays(allocator)
        })
        .unwrap();
    }

    #[test]
    fn computation_without_results_is_not_shared() {
        let store = store(SharingConfig::default(), u64::MAX);
        for _ in 0..2 {
            let (values, computed) = once(&*store, |_| Ok(Vec::new())).unwrap();
            assert!(values.is_empty() && computed);
        }
        assert!(once(&*store, arrays).unwrap().1 && !once(&*store, arrays).unwrap().1);
    }
}
