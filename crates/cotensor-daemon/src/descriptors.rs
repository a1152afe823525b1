//! Limits the descriptors of tensors, so that some remain for connections and answers.

use cotensor_core::{Error, ErrorKind, Result};
use cotensor_store::EmbeddedStore;
use rustix::process::{Resource, getrlimit};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// One in this many descriptors is for connections and answers.
const RESERVED: u64 = 8;
/// When the tensors' descriptors are exhausted, one in this many is freed.
const SHED: u64 = 128;

/// The number of descriptors for tensors.
fn for_tensors() -> u64 {
    getrlimit(Resource::Nofile).current.map_or(u64::MAX, |max| max - max / RESERVED)
}

/// Whether the tensors' descriptors are exhausted with this one: the system assigns the lowest free number.
pub(crate) fn are_scarce(newest: impl AsFd) -> bool {
    u64::try_from(newest.as_fd().as_raw_fd()).is_ok_and(|number| number >= for_tensors())
}

/// The error when no descriptor is left.
pub(crate) fn none_left() -> Error {
    let message = "the daemon has reached its limit of open descriptors: release tensors, or raise the limit (`ulimit -n`, \
                   LimitNOFILE of the service)";
    Error::new(ErrorKind::OverBudget, message)
}

/// Makes room for a descriptor that the daemon keeps: removes tensors without leases if too many descriptors are open.
///
/// # Errors
/// `OverBudget` when that does not free enough.
pub(crate) fn room_for(store: &EmbeddedStore, fd: OwnedFd) -> Result<OwnedFd> {
    if !are_scarce(&fd) {
        return Ok(fd);
    }
    let (mut lower, mut searches) = (None, 0);
    let shed = store.shed_until(&mut || {
        searches += 1;
        lower = lower.take().or_else(|| fd.try_clone().ok().filter(|copy| !are_scarce(copy)));
        // A few more at once, because each search goes through all tensors.
        lower.is_some() && searches > for_tensors() / SHED
    });
    lower.ok_or_else(|| match shed {
        Err(error) => Error::new(ErrorKind::OverBudget, format!("{}; spilling failed: {error}", none_left().message())),
        Ok(_) => none_left(),
    })
}
