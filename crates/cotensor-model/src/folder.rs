//! A model's folder on disk: its files read within bounds, and changes to them noticed.

use crate::weights::Stamp;
use cotensor_core::{Error, ErrorKind, Result, size};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The most bytes a model's JSON files may have.
const JSON_BYTES_MAX: u64 = 16 << 20;
/// The most entries that a model's folder and the folders in it may have.
const ENTRIES_MAX: usize = 10_000;

/// Sizes and times of all files of a model: those in its folder and in the folders directly in it, hidden ones left out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FolderStamp {
    files: BTreeMap<PathBuf, Stamp>,
    /// Whether every file was written long enough ago that another write would have changed its times.
    settled: bool,
}

impl FolderStamp {
    /// # Errors
    /// `Io`, or `Invalid` for a folder with too many entries.
    pub(crate) fn of(folder: &Path) -> Result<Self> {
        let mut stamp = Self { files: BTreeMap::new(), settled: true };
        let mut room = ENTRIES_MAX;
        let inner = stamp.add(folder, SystemTime::now(), &mut room)?;
        for folder in inner {
            stamp.add(&folder, SystemTime::now(), &mut room)?;
        }
        Ok(stamp)
    }

    /// Whether the files are those that `earlier` saw, and a write since then would have been seen.
    pub(crate) fn continues(&self, earlier: &FolderStamp) -> bool {
        earlier.settled && self.files == earlier.files
    }

    /// Whether sizes and times are the same. Says less than [`continues`](Self::continues) about files that were just written.
    pub(crate) fn same_files(&self, other: &FolderStamp) -> bool {
        self.files == other.files
    }

    /// Adds the files of one folder and returns the folders in it.
    fn add(&mut self, folder: &Path, now: SystemTime, room: &mut usize) -> Result<Vec<PathBuf>> {
        let io = |error: std::io::Error| Error::io("cannot read the model folder", &error).in_file(folder);
        let mut inner = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(io)? {
            let entry = entry.map_err(io)?;
            *room = room.checked_sub(1).ok_or_else(|| {
                Error::invalid(format!("a model folder of more than {ENTRIES_MAX} entries")).in_file(folder)
            })?;
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let path = entry.path();
            // A link that leads nowhere is no file of the model.
            let Ok(metadata) = path.metadata() else { continue };
            if metadata.is_dir() {
                inner.push(path);
            } else if metadata.is_file() {
                let stamp = Stamp::of(&metadata);
                self.settled &= stamp.settled(now);
                self.files.insert(path, stamp);
            }
        }
        Ok(inner)
    }
}

/// The error for a model whose folder is no longer what was opened.
pub(crate) fn changed(folder: &Path) -> Error {
    let message = "the model's folder changed since the model was opened; open it again";
    Error::new(ErrorKind::Conflict, message).in_file(folder)
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

/// Reads a JSON file of bounded size.
pub(crate) fn read_json(path: &Path) -> Result<serde_json::Value> {
    let bytes = read_bounded(path, JSON_BYTES_MAX)?;
    serde_json::from_slice(&bytes).map_err(|error| Error::corrupt(error.to_string()).in_file(path))
}

/// Reads a JSON file that may be absent.
pub(crate) fn find_json(path: &Path) -> Result<Option<serde_json::Value>> {
    if path.is_file() { read_json(path).map(Some) } else { Ok(None) }
}

/// Reads a regular file of at most `bytes_max` bytes.
pub(crate) fn read_bounded(path: &Path, bytes_max: u64) -> Result<Vec<u8>> {
    let io = |error: std::io::Error| Error::io("cannot read", &error).in_file(path);
    // Asked before opening: opening a pipe would wait for its writer.
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
