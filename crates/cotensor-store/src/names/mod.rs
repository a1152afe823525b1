//! Names, versions and holders. A lookup by name starts in `table.rs`.

mod holders;
mod spilled;
mod table;
mod version_words;

pub use holders::Holders;
pub(crate) use table::{Names, RestoredVersion, SHARDS, Superseded};
pub use version_words::{VersionWord, VersionWords, WordTable};
