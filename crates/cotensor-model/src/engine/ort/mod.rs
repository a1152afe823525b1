//! The fast engine: onnxruntime, whose library is found at run time. Weights are read from the segments of the store.

mod arena;
mod convert;
mod cores;
mod elf;
mod engine;
mod graph;
mod library;
mod native;
mod prepacked;
mod shapes;

pub use engine::OrtEngine;
pub use library::{add_libraries, installed_library, search_python};
