//! Slabs: one memfd for many small tensors of one producer.

mod free_list;
mod memory;
#[cfg(test)]
mod tests;

pub use memory::Slab;
pub(crate) use memory::SlabSegment;
