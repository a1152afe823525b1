//! The mark of a session that has ended.

use cotensor_core::{Error, ErrorKind, Result};
use std::sync::atomic::{AtomicBool, Ordering};

/// Set at the beginning of the end of a session. A table whose entries belong to sessions checks it under the table's lock: an entry is added
/// before the end of the session removes it, or never. A call may still run in the thread of a lost connection when the client's next
/// session has the name or the memory.
#[derive(Default)]
pub(crate) struct EndMark(AtomicBool);

impl EndMark {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// Refuses calls of a session that has ended.
    ///
    /// # Errors
    /// `Conflict` when the mark is set.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_set() {
            return Err(Error::new(ErrorKind::Conflict, "the session of this call has ended"));
        }
        Ok(())
    }
}
