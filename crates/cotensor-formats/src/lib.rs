//! Tensors in files: `.npy`, `.safetensors` and raw bytes; the headers of GGUF files, and of PyTorch modules in one tensor.
//!
//! Files are read and written from front to back, so that pipes work. Data is read directly into the store's memory and
//! written directly from it, without an intermediate copy.
//! No length in a file is trusted.

mod column_major;
mod entry;
mod error;
mod format;
mod gguf;
mod manifest;
mod npy;
mod placed;
mod reader;
mod replace;
mod safetensors;
mod writer;

pub use entry::FileTensor;
pub use format::Format;
pub use gguf::{BlockType, Gguf, GgufTensor, GgufValue};
pub use manifest::{ModuleManifest, ModuleTensor, Role};
pub use npy::npy_header;
pub use placed::{PlacedTensor, placed_tensors};
pub use reader::{PublishOptions, TensorReader};
pub use replace::{file_error, replace};
pub use writer::write;

#[cfg(test)]
mod tests;
