//! The on-disk cache of weights: packs of blobs in a private folder, which processes map. A blob is a byte string named
//! by its hash.

mod cache;
mod derived;
mod folder;
mod format;
mod index;
mod notes;
#[cfg(test)]
mod tests;
mod verified;
mod writer;

pub use cache::{CacheEntry, PackCache, Verification};
pub use format::{PackEntry, parse_pack_table};
