use cotensor_core::{Error, Result, size};
use std::collections::HashMap;
use std::path::PathBuf;

/// The most bytes that a JSON file of a model may have.
pub const JSON_BYTES_MAX: u64 = 16 << 20;

/// The files of a model's folder: on a disk, or fetched by a browser.
pub trait ModelFiles {
    /// The bytes of a file, or `None` when the folder has no such file. `name` is relative to the folder, with `/`
    /// between its parts.
    ///
    /// # Errors
    /// `Invalid` for a file of more than `bytes_max` bytes or for something that is not a file, `Io` when it cannot be
    /// read.
    fn read(&self, name: &str, bytes_max: u64) -> Result<Option<Vec<u8>>>;

    /// The path of a file, for error messages.
    fn path(&self, name: &str) -> PathBuf;
}

/// Files in memory, by name.
impl ModelFiles for HashMap<String, Vec<u8>> {
    fn read(&self, name: &str, bytes_max: u64) -> Result<Option<Vec<u8>>> {
        match self.get(name) {
            Some(bytes) if bytes.len() as u64 > bytes_max => {
                Err(Error::invalid(format!("more than {}", size(bytes_max))).in_file(name))
            }
            found => Ok(found.cloned()),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(name)
    }
}

/// Reads a JSON file, if the folder has it.
///
/// # Errors
/// `Corrupt` when it is not JSON, or as [`ModelFiles::read`].
pub fn find_json(files: &dyn ModelFiles, name: &str) -> Result<Option<serde_json::Value>> {
    let Some(bytes) = files.read(name, JSON_BYTES_MAX)? else { return Ok(None) };
    let parsed = serde_json::from_slice(&bytes);
    parsed.map(Some).map_err(|error| Error::corrupt(error.to_string()).in_file(files.path(name)))
}

/// Reads a JSON file.
///
/// # Errors
/// `NotFound` when the folder does not have it, or as [`find_json`].
pub(crate) fn read_json(files: &dyn ModelFiles, name: &str) -> Result<serde_json::Value> {
    find_json(files, name)?.ok_or_else(|| Error::not_found("the model needs this file").in_file(files.path(name)))
}
