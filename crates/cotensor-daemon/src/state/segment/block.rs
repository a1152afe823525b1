//! A block: a slab with one tensor at a time, which the budget counts while the tensor lies in it. Eviction and spilling free that tensor as they
//! free one with memory of its own. The memory of an empty block belongs to the client alone.

use super::slab::{Counted, Slab};
use cotensor_core::{Device, Error, Result};
use cotensor_memory::{BLOCK_BYTES_MAX, Guarantee, check_no_holes, check_sealed};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

/// Refuses what no block is, by its length and its device.
///
/// # Errors
/// `Invalid` for a length that blocks do not have, `Unsupported` for another device than the host.
pub(super) fn check(len: usize, device: Device) -> Result<()> {
    if !(1..=BLOCK_BYTES_MAX).contains(&len) {
        let message = format!("a block of {len} bytes; blocks have 1 to {BLOCK_BYTES_MAX}");
        return Err(Error::invalid(message).in_field("bytes"));
    }
    if !device.is_host() {
        let message = format!("a block on {device}: blocks are host memory");
        return Err(Error::unsupported(message).in_field("device"));
    }
    Ok(())
}

/// A new block, which [`check`] accepts.
///
/// # Errors
/// `Refused` for anything but a memfd of `len` bytes that is sealed against new writers and has no holes.
pub(super) fn new(fd: OwnedFd, len: usize) -> Result<Slab> {
    check_sealed(&fd, len, Guarantee::ProducerOnly)?;
    check_no_holes(fd.as_fd(), len)?;
    Ok(Slab::checked(Arc::new(fd.into()), len, Device::Cpu, Counted::WithTensors(Weak::new())))
}
