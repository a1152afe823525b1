//! Arrays of other libraries: their element types, their memory, and the copy of their elements.

pub(crate) mod cuda_array;
pub(crate) mod dtype;
mod gather;
mod host_copy;
mod refusal;
pub(crate) mod source;
pub(crate) mod value;

pub(crate) use gather::gather;
