//! Memory whose address other code of this process may use.

use super::context::Context;
use super::mapping::Mapping;
use cotensor_core::Result;
use cotensor_core::sync::lock;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex};

/// A mapping, or a range of one, that stays while work of this process may use its address.
pub(super) struct Lendable {
    kept: ManuallyDrop<Kept>,
    /// The contexts of the code that has the address: one for each device.
    users: Mutex<Vec<Arc<Context>>>,
}

struct Kept {
    // The order in which the fields are dropped: the range keeps its slab.
    mapping: Arc<Mapping>,
    range: Option<SlabRange>,
}

/// A range of a slab.
struct SlabRange {
    /// Where it starts in the slab, in bytes.
    start: usize,
    /// Whose drop lets the range be used again.
    owner: Box<dyn RangeOwner>,
}

/// The owner of a range of a slab.
pub(super) trait RangeOwner: Send + Sync {
    /// Lets nothing use the range again after the drop of the owner.
    fn retire(&self) {}
}

impl Lendable {
    /// All of a mapping.
    pub(super) fn new(mapping: Arc<Mapping>) -> Self {
        Self::with(Kept { mapping, range: None })
    }

    /// A range of a slab, which `mapping` shows, from the byte `start` on. The drop of `owner` lets the range be used again.
    pub(super) fn of_range(mapping: Arc<Mapping>, start: usize, owner: Box<dyn RangeOwner>) -> Self {
        Self::with(Kept { mapping, range: Some(SlabRange { start, owner }) })
    }

    fn with(kept: Kept) -> Self {
        Self { kept: ManuallyDrop::new(kept), users: Mutex::default() }
    }

    /// Gives the address of the first byte to code whose work runs in `context`.
    pub(super) fn lend(&self, context: Arc<Context>) -> u64 {
        let mut users = lock(&self.users);
        if !users.iter().any(|user| Arc::ptr_eq(user, &context)) {
            users.push(context);
        }
        self.mapping().address() + self.start() as u64
    }

    /// Whether other code has the address.
    pub(super) fn is_lent(&self) -> bool {
        !lock(&self.users).is_empty()
    }

    pub(super) fn mapping(&self) -> &Arc<Mapping> {
        &self.kept.mapping
    }

    /// Whether it is a range of a slab.
    pub(super) fn is_range(&self) -> bool {
        self.kept.range.is_some()
    }

    /// Where the memory starts in the mapping, in bytes.
    pub(super) fn start(&self) -> usize {
        self.kept.range.as_ref().map_or(0, |range| range.start)
    }

    /// Lets nothing use a range of a slab again.
    pub(super) fn retire(&self) {
        if let Some(range) = &self.kept.range {
            range.owner.retire();
        }
    }

    /// Waits for the work of other code that may use the address. Without such code, it returns at once: functions that copy wait for
    /// their own copies.
    ///
    /// # Errors
    /// `Conflict` while a stream of the context is captured into a graph; `Io`.
    pub(super) fn wait_for_users(&self) -> Result<()> {
        let users = lock(&self.users).clone();
        users.iter().try_for_each(|context| context.synchronize())
    }

    /// Waits for the work of other code that may use the address. False where the end of it cannot be found out, such as during a capture.
    pub(super) fn end_use(&self) -> bool {
        let mut users = lock(&self.users);
        users.retain(|context| !context.becomes_idle());
        users.is_empty()
    }
}

impl Drop for Lendable {
    /// Gives the memory up, once no work can use the address. Where that cannot be found out, mapping and range stay until the process ends:
    /// unmapping under a running kernel would end all work of the process.
    fn drop(&mut self) {
        if self.end_use() {
            // SAFETY: the value is not used again.
            unsafe { ManuallyDrop::drop(&mut self.kept) };
        }
    }
}
