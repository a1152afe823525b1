//! The API of spill storage.

use cotensor_core::{Result, Segment};
use std::sync::Arc;

/// Keeps the bytes of spilled segments. It must not call the store.
pub trait SpillStorage: Send + Sync {
    /// Writes the content of a host segment: the whole file behind its descriptor, or its bytes if it has none.
    ///
    /// # Errors
    /// Those of the storage, such as a full disk. The tensors of the segment then stay in memory.
    fn spill(&self, segment: &dyn Segment) -> Result<Arc<dyn SpilledSegment>>;

    /// Runs `work`, which takes as long as writing or reading a segment. An asynchronous service moves it to a thread
    /// that may block.
    fn blocking(&self, work: &mut dyn FnMut()) {
        work();
    }
}

/// A segment on spill storage. Dropping it removes it from there.
pub trait SpilledSegment: Send + Sync {
    /// Its number, unique within its [`SpillStorage`].
    fn number(&self) -> u64;

    /// The bytes of the budget that its memory takes.
    fn bytes(&self) -> u64;

    /// Checks, without reading the content, that it can be read.
    ///
    /// # Errors
    /// The reason why it cannot be read.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Reads the content into a new host segment, at the same offsets.
    ///
    /// # Errors
    /// `Corrupt` for other content than was written, `NotFound` for content that is lost. `OverBudget` when a resource
    /// other than memory is exhausted, such as descriptors: the store then spills others and tries again. `Io`
    /// else.
    fn restore(&self) -> Result<Arc<dyn Segment>>;
}
