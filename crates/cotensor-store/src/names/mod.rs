//! Names, versions and holders. A lookup by name starts in `table.rs`.

mod spilled;
mod table;
mod version_words;

pub(crate) use table::{Names, RestoredVersion, SHARDS, Superseded};
pub use version_words::{VersionWord, VersionWords, WordTable};
