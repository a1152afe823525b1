//! The tensors that flow between stages.

pub(crate) mod convert;
mod tensor_ref;
mod value;

pub use cotensor_preprocess::Array;
pub use tensor_ref::{DeviceMemory, TensorRef};
pub use value::Value;
