//! Slabs: one memfd for many small tensors of one producer.

mod memory;
mod segment;
mod shared;
#[cfg(test)]
mod tests;

pub use memory::Slab;
pub(crate) use segment::SlabSegment;
