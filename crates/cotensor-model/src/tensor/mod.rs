//! The tensors that flow between stages.

mod value;

pub use cotensor_preprocess::{Array, ArrayData, ArrayView};
pub use value::Value;
pub(crate) use value::array_bytes;
