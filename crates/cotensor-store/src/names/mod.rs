//! Names, versions and holders. A lookup by name starts in `table.rs`.

mod changes;
mod spilled;
mod table;
mod version_queue;
mod version_words;
mod waiting;

pub(crate) use changes::ChangeLog;
pub use changes::ChangesFuture;
pub(crate) use spilled::SpillOutcome;
pub(crate) use table::{NameEntry, Names, RestoredVersion, SHARDS, Superseded};
pub(crate) use version_queue::{Unqueued, VersionQueues};
pub use version_words::{VersionWord, VersionWords, WordTable};
