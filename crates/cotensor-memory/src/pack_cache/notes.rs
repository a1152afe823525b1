//! Notes: small files in the cache with results that other processes can reuse. A file has the hash of the note, then the
//! note.

use super::folder::{is_temporary, temporary_name};
use cotensor_core::{ContentHash, Error, Result};
use std::path::{Path, PathBuf};

/// The most bytes of a note.
pub(super) const NOTE_BYTES_MAX: usize = 1 << 20;

/// The bytes of a hash.
const HASH_BYTES: usize = 32;

/// A folder of notes, each named by its key.
#[derive(Clone)]
pub(super) struct Notes {
    folder: PathBuf,
}

impl Notes {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// The files of all notes.
    pub(super) fn paths(&self) -> impl Iterator<Item = PathBuf> + use<> {
        std::fs::read_dir(&self.folder).into_iter().flatten().flatten().map(|entry| entry.path())
    }

    pub(super) fn get(&self, key: &ContentHash) -> Option<Vec<u8>> {
        read(&self.folder.join(key.to_string()))
    }

    /// Removes damaged notes. Returns the number of the others, and an error for each removed note.
    pub(super) fn verify_all(&self) -> (usize, Vec<Error>) {
        let (mut intact, mut problems) = (0, Vec::new());
        for path in self.paths().filter(|path| !is_temporary(path)) {
            // A note that was removed meanwhile is not damaged.
            match (read(&path), path.exists()) {
                (Some(_), _) => intact += 1,
                (None, true) => {
                    // A note that cannot be removed is found damaged again.
                    let _ = std::fs::remove_file(&path);
                    problems.push(Error::corrupt("the note does not match its hash").in_file(path));
                }
                (None, false) => {}
            }
        }
        (intact, problems)
    }

    pub(super) fn put(&self, key: &ContentHash, note: &[u8]) -> Result<()> {
        if note.len() > NOTE_BYTES_MAX {
            return Err(Error::invalid(format!("a note of {} bytes; at most {NOTE_BYTES_MAX}", note.len())));
        }
        let temporary = self.folder.join(temporary_name());
        let written = std::fs::write(&temporary, [ContentHash::of(note).as_bytes(), note].concat())
            .and_then(|()| std::fs::rename(&temporary, self.folder.join(key.to_string())));
        written.map_err(|error| {
            // Best effort; the first error is returned.
            let _ = std::fs::remove_file(&temporary);
            Error::io("cannot write a note", &error).in_file(&temporary)
        })
    }
}

/// The note in a file. `None` for a file that is missing, too long or damaged.
fn read(path: &Path) -> Option<Vec<u8>> {
    let found = std::fs::symlink_metadata(path).ok()?;
    (found.is_file() && found.len() <= (HASH_BYTES + NOTE_BYTES_MAX) as u64).then_some(())?;
    let bytes = std::fs::read(path).ok()?;
    let (hash, note) = bytes.split_at_checked(HASH_BYTES)?;
    (ContentHash::of(note).as_bytes()[..] == *hash).then(|| note.to_vec())
}
