//! Memory that clients made. The daemon checks it, keeps its descriptor and passes it on; it maps nothing.

mod device;
mod file;
mod part;
mod read;
mod sealed;
mod slab;
mod slabs;
mod upload;

pub(crate) use file::{file_bytes, file_of, known_segment, own_segment};
pub(crate) use part::Part;
pub(crate) use read::{Inode, inode, is_in};
pub(crate) use sealed::Sealed;
pub(crate) use slab::{Slab, SlabOwner};
pub(crate) use slabs::{SlabFile, Slabs};
pub(crate) use upload::{RoomFor, Upload};
