//! Keys as messages write them.

use cotensor_core::{ContentHash, Error, Hasher, Result};
use cotensor_store::Key;

/// A key or a hash as messages write it.
pub(super) fn key(hex: &str) -> Result<ContentHash> {
    ContentHash::from_hex(hex).ok_or_else(|| Error::invalid("64 hexadecimal digits expected").in_field("key"))
}

/// The store's key of what a client claims. It lies in a domain of its own: contents are claims as well, under keys that a
/// client can compute, and no client's result may stand for a content that was not verified.
///
/// # Errors
/// `Invalid` for what is no key.
pub(crate) fn claim_key(hex: &str) -> Result<Key> {
    Ok(Key(Hasher::new("cotensor client claim v1").field(key(hex)?.as_bytes()).finish()))
}
