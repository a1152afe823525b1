//! What a slab and its segments share.

use super::free_list::FreeList;
use crate::mapping::{Mapping, Windows};
use cotensor_core::sync::lock;
use cotensor_core::{Error, ErrorKind, Result};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard};

pub(super) struct SlabShared {
    /// Only for filling segments; forked children do not inherit it.
    pub(super) writable: Mapping,
    pub(super) readable: Mapping,
    pub(super) fd: OwnedFd,
    /// The process that created the slab. A forked child has the same pages and a copy of `ranges`, so it would
    /// allocate ranges that the parent allocates too.
    pub(super) owner: u32,
    pub(super) ranges: Mutex<Ranges>,
    /// The private mappings of readers in this process.
    pub(super) windows: Windows,
}

pub(super) struct Ranges {
    pub(super) free: FreeList,
    /// The bytes from here on have never been allocated, so they are zero.
    pub(super) high_water: usize,
}

impl SlabShared {
    /// # Errors
    /// `Conflict` in a forked child, which does not have the writable mapping.
    pub(super) fn check_owner(&self) -> Result<()> {
        if self.owner == std::process::id() {
            Ok(())
        } else {
            Err(Error::new(ErrorKind::Conflict, "this slab belongs to the process that this one was forked from"))
        }
    }

    pub(super) fn ranges(&self) -> MutexGuard<'_, Ranges> {
        lock(&self.ranges)
    }
}
