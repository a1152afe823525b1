//! Engines run graphs. An engine borrows weights that the store owns; it never owns weights that the store could own.
//! A new engine is a folder beside `rten` and a line in `registry.rs`.

mod api;
mod output;
mod registry;
mod rten;

pub use api::{Capabilities, Engine, FileMode, LoadedGraph};
pub use output::{Output, OutputAllocator, OutputSpec, OwnMemory};
pub use registry::{names, open, open_default};
pub use rten::RtenEngine;
