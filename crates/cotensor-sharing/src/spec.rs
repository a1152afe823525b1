//! Specifications and layouts of shared tensors.

use cotensor_core::{DType, Error, Kind, Layout, Result, Slice};
use cotensor_store::{Retention, TensorSpec};

/// The specification of a tensor in host memory.
pub(crate) fn spec(
    name: &str,
    shape: &[usize],
    dtype: DType,
    kind: Kind,
    producer: &str,
    retention: Retention,
) -> TensorSpec {
    TensorSpec { kind, producer: producer.to_owned(), retention, ..TensorSpec::new(name, dtype, shape) }
}

/// The layout of `size` elements from `offset` on, along each dimension.
pub(crate) fn window(layout: &Layout, offset: &[usize], size: &[usize]) -> Result<Layout> {
    if offset.len() != size.len() {
        return Err(Error::invalid(format!("{} offsets for {} sizes", offset.len(), size.len())));
    }
    let slices: Vec<Slice> = offset.iter().zip(size).map(|(&start, &len)| Slice { start, len, step: 1 }).collect();
    layout.view(&slices)
}
