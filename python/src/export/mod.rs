//! Memory of tensors as arrays of other libraries: numpy's array interface and DLPack.

pub(crate) mod buffer;
pub(crate) mod device;
pub(crate) mod dtype;
pub(crate) mod numpy;
pub(crate) mod operators;
pub(crate) mod private_pages;
pub(crate) mod tensor_mapping;
