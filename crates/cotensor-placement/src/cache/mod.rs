//! Which tensors to keep when the next uses are unknown.

mod blend;
mod tiny_lfu;

pub use blend::Blend;
pub(crate) use tiny_lfu::TinyLfu;

#[cfg(test)]
pub(crate) mod policies;
#[cfg(test)]
mod tests;
