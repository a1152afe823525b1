//! The engine that every build has: the crate `rten`, which reads weights from the segments of the store.

mod convert;
mod engine;
mod load;
mod names;
mod saturation;
mod state;

pub use engine::RtenEngine;
