//! Private mappings of a whole slab, in which the readers of its small tensors share pages.
//!
//! A mapping for each small tensor would soon reach `vm.max_map_count`, and takes three times as long. In a window each
//! range of the slab has one reader at most; another reader of the same range gets it in another window.
//!
//! A write copies the whole page, with the bytes of the tensors beside it. Their readers see equal bytes, because a
//! leased range does not change. A later tensor in the page would not show through the copy, so:
//!
//! - **W1**: a range is given to a reader only while none of its pages has a copy.
//! - **W2**: the copy of a page is dropped with the last reader of the page.

use super::dirty_pages::dirty_bytes;
use super::mmap::{Access, Mapping};
use cotensor_core::Result;
use cotensor_core::sync::lock;
use rustix::param::page_size;
use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

/// The most windows of a slab. Further readers of the same range get mappings of their own.
const WINDOWS_MAX: usize = 16;

/// The windows of one slab in this process. They end with the slab and its readers.
pub(crate) struct Windows {
    /// The process that made the windows. In a forked child, a thread that does not exist may hold the locks for ever.
    owner: u32,
    open: Mutex<Vec<Arc<Window>>>,
}

impl Default for Windows {
    fn default() -> Self {
        Self { owner: std::process::id(), open: Mutex::default() }
    }
}

impl Windows {
    /// A part of a window that shows the bytes `range` of the slab `fd` of `len` bytes. `None` in a forked child, for
    /// an empty range, and when all windows have another reader of the range.
    ///
    /// # Errors
    /// As [`Mapping::new`].
    pub(crate) fn part(&self, fd: BorrowedFd<'_>, len: usize, range: &Range<usize>) -> Result<Option<WindowPart>> {
        if range.is_empty() || range.end > len || self.owner != std::process::id() {
            return Ok(None);
        }
        let mut open = lock(&self.open);
        let part =
            |window: &Arc<Window>| WindowPart { window: Arc::clone(window), range: range.clone(), owner: self.owner };
        if let Some(window) = open.iter().find(|window| window.take(range)) {
            return Ok(Some(part(window)));
        }
        if open.len() >= WINDOWS_MAX {
            return Ok(None);
        }
        let map = Mapping::new(fd, len, Access::CopyOnWrite)?;
        let window = Arc::new(Window { map, taken: Mutex::default() });
        let taken = window.take(range).then(|| part(&window));
        open.push(window);
        Ok(taken)
    }
}

struct Window {
    map: Mapping,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    /// The ranges that have a reader, as end by start. They do not overlap.
    ranges: BTreeMap<usize, usize>,
    /// Whether a copy could not be dropped, as with locked memory. The window then gets no new readers.
    retired: bool,
}

impl Taken {
    /// The part of `pages`, which hold the bytes `range`, that no other reader has.
    fn exclusive(&self, range: &Range<usize>, pages: &Range<usize>) -> Range<usize> {
        let mut exclusive = pages.clone();
        if self.ranges.range(..range.start).next_back().is_some_and(|(_, &end)| end > pages.start) {
            exclusive.start += page_size();
        }
        if self.ranges.range(range.end..).next().is_some_and(|(&start, _)| start < pages.end) {
            exclusive.end -= page_size();
        }
        exclusive
    }
}

impl Window {
    /// Takes a range for a reader, unless a part of it is taken or one of its pages has a copy (W1).
    fn take(&self, range: &Range<usize>) -> bool {
        let mut taken = lock(&self.taken);
        let before = taken.ranges.range(..range.end).next_back();
        if taken.retired || before.is_some_and(|(_, &end)| end > range.start) {
            return false;
        }
        // Pages without another reader have no copies (W2).
        let pages = pages(range);
        if taken.exclusive(range, &pages) != pages && !matches!(self.dirty_bytes(range), Ok(0)) {
            return false;
        }
        taken.ranges.insert(range.start, range.end);
        true
    }

    /// Ends the use of a range, and drops the copies of pages that have no other reader (W2). Returns the size of the
    /// copies with bytes of the range.
    fn release(&self, range: &Range<usize>) -> Result<u64> {
        let mut taken = lock(&self.taken);
        taken.ranges.remove(&range.start);
        let dirty = self.dirty_bytes(range);
        if !matches!(dirty, Ok(0)) {
            let dropped = self.map.drop_copies(taken.exclusive(range, &pages(range)));
            taken.retired |= dropped.is_err();
        }
        dirty
    }

    /// The size of the copied pages that hold bytes of `range`.
    fn dirty_bytes(&self, range: &Range<usize>) -> Result<u64> {
        let pages = pages(range);
        dirty_bytes(self.map.start().addr().get() + pages.start, range.end - pages.start)
    }
}

/// The whole pages that hold the bytes `range`.
fn pages(range: &Range<usize>) -> Range<usize> {
    range.start - range.start % page_size()..range.end.next_multiple_of(page_size())
}

/// A range of a window that one reader has.
pub(crate) struct WindowPart {
    window: Arc<Window>,
    range: Range<usize>,
    owner: u32,
}

impl WindowPart {
    /// The address of the first byte. The range is mapped and writable while the part lives, and no other part
    /// overlaps it.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.window.map.start().map_addr(|address| address.saturating_add(self.range.start))
    }

    /// The length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.range.len()
    }

    /// Ends the part. Returns the size, in bytes, of the copied pages that held bytes of it, whichever of their readers
    /// wrote them.
    ///
    /// # Errors
    /// As [`dirty_bytes`].
    pub(crate) fn close(mut self) -> Result<u64> {
        self.release()
    }

    fn release(&mut self) -> Result<u64> {
        let range = std::mem::take(&mut self.range);
        if range.is_empty() || self.owner != std::process::id() { Ok(0) } else { self.window.release(&range) }
    }
}

impl Drop for WindowPart {
    fn drop(&mut self) {
        // If the kernel does not report copies, they are dropped.
        let _ = self.release();
    }
}
