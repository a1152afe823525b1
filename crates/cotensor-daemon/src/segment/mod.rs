//! Memory that clients made. The daemon checks it, keeps its descriptor and passes it on; it maps nothing.

mod file;
mod part;
mod read;
mod sealed;
mod slab;
mod slabs;

pub(crate) use file::file_of;
pub(crate) use part::Part;
pub(crate) use read::{Inode, inode};
pub(crate) use sealed::Sealed;
pub(crate) use slab::{Slab, SlabOwner};
pub(crate) use slabs::Slabs;
