//! The segments that a session holds something in.

use cotensor_core::{Error, Result};
use rustix::fs::fstat;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

/// The numbers under which the session knows segments. A number lives while the session holds something in the segment,
/// and with that the daemon's descriptor of it, which is what tells segments apart here.
#[derive(Default)]
pub(super) struct Segments {
    next: u64,
    pub(super) by_fd: HashMap<RawFd, Known>,
}

pub(super) struct Known {
    pub(super) id: u64,
    /// Its size.
    pub(super) bytes: u64,
    /// Leases and slabs of the session in it.
    uses: usize,
    /// Whether the client was sent its descriptor.
    pub(super) sent: bool,
}

impl Segments {
    pub(super) fn hold(&mut self, fd: BorrowedFd<'_>) -> Result<&mut Known> {
        let known = match self.by_fd.entry(fd.as_raw_fd()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let found = fstat(fd).map_err(|error| Error::io("looking at a segment", &error.into()))?;
                let bytes = u64::try_from(found.st_size).unwrap_or(0);
                self.next += 1;
                place.insert(Known { id: self.next, bytes, uses: 0, sent: false })
            }
        };
        known.uses += 1;
        Ok(known)
    }

    pub(super) fn let_go(&mut self, fd: RawFd) {
        if let Some(known) = self.by_fd.get_mut(&fd) {
            known.uses -= 1;
            if known.uses == 0 {
                self.by_fd.remove(&fd);
            }
        }
    }
}
