//! The segments in which a session has leases or slabs.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

/// Segments by the daemon's descriptors. An entry exists while the session uses the segment. The use keeps the daemon's
/// descriptor open, so its number identifies the segment.
#[derive(Default)]
pub(super) struct SegmentTable {
    next: u64,
    by_fd: HashMap<RawFd, SegmentEntry>,
}

pub(super) struct SegmentEntry {
    /// The number by which the client knows the segment.
    pub(super) id: u64,
    /// The size in bytes.
    pub(super) bytes: u64,
    /// The number of leases and slabs of the session in it.
    pub(super) uses: usize,
    /// Whether the client has its descriptor.
    pub(super) sent: bool,
}

impl SegmentTable {
    /// Counts one more use of the segment of `bytes` bytes behind `fd`.
    pub(super) fn add_use(&mut self, fd: BorrowedFd<'_>, bytes: usize) -> &mut SegmentEntry {
        let entry = self.by_fd.entry(fd.as_raw_fd()).or_insert_with(|| {
            self.next += 1;
            SegmentEntry { id: self.next, bytes: bytes as u64, uses: 0, sent: false }
        });
        entry.uses += 1;
        entry
    }

    /// Counts one use less, and removes the entry with the last use.
    pub(super) fn remove_use(&mut self, fd: RawFd) {
        if let Some(entry) = self.by_fd.get_mut(&fd) {
            entry.uses -= 1;
            if entry.uses == 0 {
                self.by_fd.remove(&fd);
            }
        }
    }

    pub(super) fn get(&self, fd: RawFd) -> Option<&SegmentEntry> {
        self.by_fd.get(&fd)
    }

    /// The entry with the client's number `id`, and the daemon's descriptor of the segment.
    pub(super) fn find(&mut self, id: u64) -> Option<(RawFd, &mut SegmentEntry)> {
        self.by_fd.iter_mut().find(|(_, entry)| entry.id == id).map(|(fd, entry)| (*fd, entry))
    }
}
