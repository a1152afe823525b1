//! Keys and hashes in hexadecimal.

use cotensor_core::{ContentHash, Error, Hasher, Result};
use cotensor_store::Key;

/// Parses a key or a hash.
pub(crate) fn content_hash(hex: &str) -> Result<ContentHash> {
    ContentHash::from_hex(hex).ok_or_else(|| Error::invalid("64 hexadecimal digits expected").in_field("key"))
}

/// The store's key for a client's claim, in a domain of its own. Blobs are claims too, under keys that a client can
/// compute: a client's result must not replace a verified blob.
///
/// # Errors
/// `Invalid` for anything but 64 hexadecimal digits.
pub(crate) fn claim_key(hex: &str) -> Result<Key> {
    Ok(Key(Hasher::new("cotensor client claim v1").field(content_hash(hex)?.as_bytes()).finish()))
}
