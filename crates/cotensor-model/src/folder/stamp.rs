use cotensor_core::{Error, ErrorKind, FileStamp, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The most entries in a model's folder and its subfolders.
const ENTRIES_MAX: usize = 10_000;
/// The levels of folders whose files count. A link may lead back.
const LEVELS_MAX: usize = 8;

/// Sizes and times of the files in a model's folder and its subfolders, without hidden ones.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FolderStamp {
    files: BTreeMap<PathBuf, FileStamp>,
    /// Whether every file is old enough that a further write would change its times.
    settled: bool,
}

impl FolderStamp {
    /// # Errors
    /// `Io`, or `Invalid` for a folder with too many entries.
    pub(crate) fn of(folder: &Path) -> Result<Self> {
        let mut stamp = Self { files: BTreeMap::new(), settled: true };
        let mut room = ENTRIES_MAX;
        let mut level = stamp.add(folder, SystemTime::now(), &mut room)?;
        for depth in 1..LEVELS_MAX {
            let mut inner = Vec::new();
            for folder in level {
                match stamp.add(&folder, SystemTime::now(), &mut room) {
                    Ok(folders) => inner.extend(folders),
                    // Deeper folders may be no part of the model: logs, data, a link that leads back.
                    Err(_) if depth > 1 => {}
                    Err(error) => return Err(error),
                }
            }
            level = inner;
        }
        Ok(stamp)
    }

    /// Whether the files are unchanged since `earlier`. False if `earlier` could not detect a later write.
    pub(crate) fn continues(&self, earlier: &FolderStamp) -> bool {
        earlier.settled && self.files == earlier.files
    }

    /// Whether sizes and times are equal. Less strict than [`continues`](Self::continues) for files that were just
    /// written.
    pub(crate) fn same_files(&self, other: &FolderStamp) -> bool {
        self.files == other.files
    }

    /// Adds the files of one folder and returns its subfolders.
    fn add(&mut self, folder: &Path, now: SystemTime, room: &mut usize) -> Result<Vec<PathBuf>> {
        let io = |error: std::io::Error| Error::io("cannot read the model folder", &error).in_file(folder);
        let mut inner = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(io)? {
            let entry = entry.map_err(io)?;
            *room = room.checked_sub(1).ok_or_else(|| {
                Error::invalid(format!("the model folder has more than {ENTRIES_MAX} entries")).in_file(folder)
            })?;
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let path = entry.path();
            // A broken link is ignored.
            let Ok(metadata) = path.metadata() else { continue };
            if metadata.is_dir() {
                inner.push(path);
            } else if metadata.is_file() {
                let stamp = FileStamp::of(&metadata);
                self.settled &= stamp.settled(now);
                self.files.insert(path, stamp);
            }
        }
        Ok(inner)
    }
}

/// The error for a model whose folder changed after it was opened.
pub(crate) fn changed(folder: &Path) -> Error {
    let message = "the model's folder changed since the model was opened; open it again";
    Error::new(ErrorKind::Conflict, message).in_file(folder)
}
