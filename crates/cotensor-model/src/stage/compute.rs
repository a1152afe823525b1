//! Results that are computed once and kept in a store.

use crate::tensor::{Array, Value, array_bytes};
use cotensor_core::{ErrorKind, Hasher, Kind, Result, Space};
use cotensor_store::{Claim, CopyReason, Holder, Key, Lease, Reservation, Retention, Store, TensorSpec};
use std::time::Instant;

/// Claims `key`; computes and publishes the arrays when nobody has. Results that may not be shared (configuration) are
/// the caller's own: private in the store, so that the budget knows of them. Where that is known beforehand nobody
/// waits for another's result, which would never come.
pub(crate) fn compute_once(
    store: &dyn Store,
    key: Key,
    space: Option<Space>,
    kind: Kind,
    labels: &[String],
    holder: &Holder,
    compute: impl FnOnce() -> Result<Vec<Array>>,
) -> Result<(Vec<Value>, bool)> {
    let ticket = if store.config().refuses(kind, 0).is_some() {
        None
    } else {
        match store.claim(&key, holder)? {
            Claim::Ready(leases) => return Ok((values(leases), false)),
            Claim::Compute(ticket) => Some(ticket),
        }
    };
    // What belongs to no space is an input on its way to an encoder.
    let reason = if space.is_some() { CopyReason::EngineOutput } else { CopyReason::Preprocessed };
    let start = Instant::now();
    let arrays = compute()?;
    let recompute = start.elapsed();
    let spec = |(index, array): (usize, &Array)| TensorSpec {
        name: format!("{}/{}", labels.get(index).map_or("output", String::as_str), key.0.short()),
        dtype: array.dtype(),
        shape: array.shape().to_vec(),
        device: cotensor_core::Device::Cpu,
        kind,
        space,
        producer: holder.name().to_owned(),
        retention: Retention::Cached { recompute },
        provenance: Some(Hasher::new("cotensor output v1").field(key.0.as_bytes()).number(index as u64).finish()),
    };
    let specs: Vec<TensorSpec> = arrays.iter().enumerate().map(spec).collect();
    // All are asked for, so that every refusal is counted; one refused output keeps the whole result private.
    let reserved: Vec<Result<Reservation>> = specs.iter().map(|spec| store.reserve(spec.clone(), holder)).collect();
    let refused = |reserved: &Result<Reservation>| matches!(reserved, Err(e) if e.kind() == ErrorKind::Refused);
    match ticket {
        Some(ticket) if !arrays.is_empty() && !reserved.iter().any(refused) => {
            let leases = ticket.publish(filled(reserved, &arrays, reason)?)?;
            Ok((values(leases), true))
        }
        ticket => {
            // Who waits goes on at once, and what was reserved makes room.
            drop((ticket, reserved));
            let reserved = specs.into_iter().map(|spec| store.reserve_private(spec, holder));
            let leases: Result<_> = filled(reserved, &arrays, reason)?.into_iter().map(Reservation::publish).collect();
            Ok((values(leases?), true))
        }
    }
}

fn values(leases: Vec<Lease>) -> Vec<Value> {
    leases.into_iter().map(Value::from).collect()
}

/// The reservations with the arrays' elements copied in.
fn filled(
    reserved: impl IntoIterator<Item = Result<Reservation>>,
    arrays: &[Array],
    reason: CopyReason,
) -> Result<Vec<Reservation>> {
    let fill = |(reserved, array): (Result<Reservation>, &Array)| {
        let mut reservation = reserved?;
        reservation.write(array_bytes(array), reason)?;
        Ok(reservation)
    };
    reserved.into_iter().zip(arrays).map(fill).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_core::ContentHash;
    use cotensor_store::{EmbeddedStore, SharingConfig};
    use cotensor_store::{StoreReports, TensorStore};
    use std::sync::{Arc, Barrier};

    fn once(store: &EmbeddedStore, compute: impl FnOnce() -> Result<Vec<Array>>) -> Result<(Vec<Value>, bool)> {
        let labels = ["a".to_owned(), "b".to_owned()];
        compute_once(store, Key(ContentHash::of(b"k")), None, Kind::Other, &labels, &store.holder("m"), compute)
    }

    fn arrays() -> Result<Vec<Array>> {
        Ok(vec![Array::f32([10], vec![1.5; 10])?, Array::i32([1], vec![7])?])
    }

    fn store(config: SharingConfig, max_memory_bytes: u64) -> Arc<EmbeddedStore> {
        EmbeddedStore::builder().config(config).max_memory_bytes(max_memory_bytes).build()
    }

    #[test]
    fn refused_results_are_charged_counted_and_freed() {
        let disabled = SharingConfig { enable_shared_tensors: false, ..SharingConfig::default() };
        let large = SharingConfig { max_shared_tensor_size_bytes: Some(20), ..SharingConfig::default() };
        for (config, refused) in [(disabled, 2), (large, 1)] {
            let tight = store(config.clone(), 43);
            assert_eq!(once(&tight, arrays).err().unwrap().kind(), ErrorKind::OverBudget);
            let store = store(config, 44);
            let (values, computed) = once(&store, arrays).unwrap();
            assert!(computed && values[0].as_f32().unwrap() == [1.5; 10] && values[1].as_i32().unwrap() == [7]);
            let stats = store.stats();
            assert_eq!((stats.memory_usage_bytes, stats.total_tensors), (44, 0));
            assert_eq!(stats.refused.values().sum::<u64>(), refused);
            drop(values);
            assert_eq!(store.stats().memory_usage_bytes, 0);
        }
    }

    #[test]
    fn nobody_waits_for_a_result_that_is_not_shared() {
        let config = SharingConfig { enable_shared_tensors: false, ..SharingConfig::default() };
        let store = store(config, u64::MAX);
        // Passes only when both compute at the same time.
        let both = Barrier::new(2);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    once(&store, || {
                        both.wait();
                        arrays()
                    })
                    .unwrap()
                });
            }
        });
    }

    #[test]
    fn a_computation_without_results_is_no_claim() {
        let store = store(SharingConfig::default(), u64::MAX);
        for _ in 0..2 {
            let (values, computed) = once(&store, || Ok(Vec::new())).unwrap();
            assert!(values.is_empty() && computed);
        }
        assert!(once(&store, arrays).unwrap().1 && !once(&store, arrays).unwrap().1);
    }
}
