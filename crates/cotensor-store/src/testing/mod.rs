//! The conformance suite that every [`Store`](crate::Store) passes: the local store, and clients of a daemon.
//!
//! [`conformance`] is for host memory, [`device_conformance`] for the memory of a device.

mod devices;
mod fixtures;
mod groups;
mod names;
mod room;
mod suite;
mod tensors;
mod versions;
mod work;

pub use devices::device_conformance;
pub use fixtures::OpenStore;
pub use suite::conformance;
