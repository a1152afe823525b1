//! Engines run graphs. An engine borrows weights that the store owns; it never owns weights that the store could own.
//! A new engine is a folder beside `rten` and a line in `registry.rs`.

mod api;
mod checks;
mod engines;
mod guard;
#[cfg(feature = "onnxruntime")]
mod ort;
mod output;
mod registry;
mod rten;
mod state;

pub use api::{Capabilities, Engine, EngineOptions, FileMode, LoadedGraph, MultipliedCodes, keep_arrays};
pub use engines::{AUTO, EngineInfo, Engines};
pub(crate) use engines::{Candidate, WITHOUT_CACHE};
#[cfg(feature = "onnxruntime")]
pub use ort::{OrtEngine, add_libraries, installed_library, search_python};
pub use output::{Output, OutputAllocator, OutputSpec, OwnMemory};
pub use registry::{names, open};
pub use rten::RtenEngine;
pub use state::{Keep, RunState};
