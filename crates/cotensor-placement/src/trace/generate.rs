use super::trace::{Operation, Tensor, Trace};
use crate::time::Nanos;
use cotensor_core::Result;

/// A trace of `count` operations, each with a tensor of its own of `size_bytes` and `compute_ns` on the device.
///
/// # Errors
/// Those of [`Trace::new`].
pub fn cyclic(count: usize, size_bytes: u64, compute_ns: Nanos) -> Result<Trace> {
    let tensors = (0..count).map(|index| Tensor { id: format!("w{index}"), size_bytes }).collect();
    let operation = |index| Operation {
        name: format!("op{index}"),
        uses: vec![index],
        writes: Vec::new(),
        compute_ns,
        cpu_ns: None,
        workspace_bytes: 0,
    };
    Trace::new(tensors, (0..count).map(operation).collect(), 1)
}
