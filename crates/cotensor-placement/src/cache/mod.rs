//! Which tensors to keep when the next uses are unknown.

mod tiny_lfu;

pub(crate) use tiny_lfu::TinyLfu;

#[cfg(test)]
mod tests;
