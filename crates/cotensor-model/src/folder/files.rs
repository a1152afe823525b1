use cotensor_core::{Error, Result, size};
use cotensor_preprocess::ModelFiles;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The files in a model's folder on a disk.
#[derive(Clone, Copy, Debug)]
pub struct ModelFolder<'a>(&'a Path);

impl<'a> ModelFolder<'a> {
    /// The files in `folder`.
    pub fn new(folder: &'a Path) -> Self {
        Self(folder)
    }
}

impl ModelFiles for ModelFolder<'_> {
    fn read(&self, name: &str, bytes_max: u64) -> Result<Option<Vec<u8>>> {
        let path = self.0.join(name);
        if path.is_file() { read_bounded(&path, bytes_max).map(Some) } else { Ok(None) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

/// The folder's canonical path.
pub(crate) fn canonical_folder(folder: &Path) -> Result<PathBuf> {
    let path =
        folder.canonicalize().map_err(|error| Error::io("cannot open the model folder", &error).in_file(folder))?;
    if !path.is_dir() {
        return Err(Error::invalid("a model is a folder with a config.json").in_file(folder));
    }
    Ok(path)
}

/// Reads a regular file of at most `bytes_max` bytes.
pub(crate) fn read_bounded(path: &Path, bytes_max: u64) -> Result<Vec<u8>> {
    let io = |error: std::io::Error| Error::io("cannot read", &error).in_file(path);
    // Checked before the file is opened: opening a pipe would wait for its writer.
    let found = std::fs::metadata(path).map_err(io)?;
    if !found.is_file() {
        return Err(Error::invalid("not a regular file").in_file(path));
    }
    let too_long = || Error::invalid(format!("more than {}", size(bytes_max))).in_file(path);
    if found.len() > bytes_max {
        return Err(too_long());
    }
    let mut bytes = Vec::new();
    std::fs::File::open(path).map_err(io)?.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > bytes_max {
        return Err(too_long());
    }
    Ok(bytes)
}
