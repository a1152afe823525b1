//! Anonymous files (`memfd_create`) that any process can map and no process can write once they are published.

mod allocate;
mod foreign;
mod seal;
mod sealed;
#[cfg(test)]
mod tests;
mod writable;

pub(crate) use allocate::allocate;
pub use foreign::ForeignMemfd;
pub(crate) use seal::seal;
pub use seal::{Guarantee, check_no_holes, check_sealed};
pub(crate) use sealed::{MemfdSlice, import};
pub use sealed::{SealedMemfd, shared_bytes};
pub use writable::{MemfdMemory, MemfdMut};
