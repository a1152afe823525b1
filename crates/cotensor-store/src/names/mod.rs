//! Names, versions and holders.

mod holders;
mod table;
mod version_words;

pub use holders::Holders;
pub(crate) use table::{Names, Restored, SHARDS, Superseded};
pub use version_words::{Place, Slots, Words};
