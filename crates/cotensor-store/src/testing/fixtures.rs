//! Tensors and checks that all parts of the suite use.

use crate::{CopyReason, Lease, Retention, Store, TensorSpec};
use cotensor_core::testing::until;
use cotensor_core::{DType, Kind};
use std::sync::Arc;
use std::time::Duration;

/// Opens one more client of the store under test.
pub type OpenStore = Box<dyn Fn() -> Arc<dyn Store>>;

/// Bytes of a large tensor. Small ones may be parts of a segment, which counts as a whole.
pub(super) const LARGE: usize = 1 << 20;

/// A tensor of bytes that is freed with its last lease.
pub(super) fn spec(name: &str, bytes: usize) -> TensorSpec {
    TensorSpec { kind: Kind::TextEmbedding, producer: "suite".to_owned(), ..TensorSpec::new(name, DType::U8, &[bytes]) }
}

/// A cached tensor with this recompute time.
pub(super) fn cached(name: &str, bytes: usize, recompute_ms: u64) -> TensorSpec {
    let recompute = Duration::from_millis(recompute_ms);
    TensorSpec { retention: Retention::Cached { recompute }, ..spec(name, bytes) }
}

pub(super) fn put(store: &dyn Store, spec: TensorSpec, byte: u8) -> Lease {
    let bytes = spec.shape.iter().product();
    let mut reservation = store.reserve(spec, &store.holder("writer")).expect("reserve");
    reservation.write(&vec![byte; bytes], CopyReason::Put).expect("write");
    reservation.publish().expect("publish")
}

pub(super) fn all_are(lease: &Lease, byte: u8) -> bool {
    lease.bytes().is_some_and(|bytes| bytes.iter().all(|&found| found == byte))
}

/// Waits until the store is empty.
pub(super) fn ends_empty(store: &dyn Store) {
    until("all bytes come back", || store.stats().total_tensors == 0 && store.stats().memory_usage_bytes == 0);
}
