//! The fixtures, and a folder of configuration files.

use cotensor_core::{Error, Result};
use cotensor_preprocess::ModelFiles;
use std::path::{Path, PathBuf};

pub(crate) fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

/// The files in a folder on the disk.
pub(crate) struct Folder<'a>(pub(crate) &'a Path);

impl ModelFiles for Folder<'_> {
    fn read(&self, name: &str, _bytes_max: u64) -> Result<Option<Vec<u8>>> {
        match std::fs::read(self.0.join(name)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io("reading", &error).in_file(self.0.join(name))),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}
