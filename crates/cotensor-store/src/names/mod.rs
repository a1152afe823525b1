//! Names, versions and holders.

mod holders;
mod table;
mod version_words;

pub use holders::Holders;
pub(crate) use table::{Names, RestoredVersion, SHARDS, Superseded};
pub use version_words::{VersionWord, VersionWords, WordTable};
