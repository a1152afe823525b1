//! Notes: small files in the cache with results that other processes can reuse.

use super::folder::temporary_name;
use cotensor_core::{ContentHash, Error, Result};
use std::path::PathBuf;

/// The most bytes of a note.
pub(super) const NOTE_BYTES_MAX: usize = 1 << 20;

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
        let path = self.folder.join(key.to_string());
        let small = std::fs::metadata(&path).is_ok_and(|file| file.len() <= NOTE_BYTES_MAX as u64);
        small.then(|| std::fs::read(&path).ok()).flatten()
    }

    pub(super) fn put(&self, key: &ContentHash, note: &[u8]) -> Result<()> {
        if note.len() > NOTE_BYTES_MAX {
            return Err(Error::invalid(format!("a note of {} bytes; at most {NOTE_BYTES_MAX}", note.len())));
        }
        let temporary = self.folder.join(temporary_name());
        let written = std::fs::write(&temporary, note)
            .and_then(|()| std::fs::rename(&temporary, self.folder.join(key.to_string())));
        written.map_err(|error| {
            // Best effort; the first error is returned.
            let _ = std::fs::remove_file(&temporary);
            Error::io("cannot write a note", &error).in_file(&temporary)
        })
    }
}
