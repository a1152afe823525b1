//! The limits of names and metadata.

use cotensor_core::{Error, Result};

/// The longest name of a tensor, a holder or a producer, in bytes.
pub const NAME_BYTES_MAX: usize = 1024;
/// The longest metadata of a tensor, in bytes.
pub const METADATA_BYTES_MAX: usize = 4096;

/// Checks the length of metadata.
///
/// # Errors
/// `Invalid` for more than [`METADATA_BYTES_MAX`] bytes.
pub(crate) fn check_metadata(metadata: Option<&str>) -> Result<()> {
    let bytes = metadata.map_or(0, str::len);
    if bytes > METADATA_BYTES_MAX {
        let message = format!("{bytes} bytes of JSON; at most {METADATA_BYTES_MAX} are kept with a tensor");
        return Err(Error::invalid(message).in_field("metadata"));
    }
    Ok(())
}

/// Checks the length of a name.
///
/// # Errors
/// `Invalid` with `field` for more than [`NAME_BYTES_MAX`] bytes.
pub fn check_name(name: &str, field: &str) -> Result<()> {
    if name.len() > NAME_BYTES_MAX {
        Err(Error::invalid(format!("longer than {NAME_BYTES_MAX} bytes")).in_field(field))
    } else {
        Ok(())
    }
}
