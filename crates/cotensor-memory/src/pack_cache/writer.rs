//! Writing a pack.

use super::format::{PackEntry, write_table};
use super::index::PackIndex;
use crate::host::MappedFileMut;
use cotensor_core::sync::lock;
use cotensor_core::{BlobLocation, Error, ErrorKind, PackMut, Result, Segment};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// A pack that is written under a temporary name and gets its final name at the commit.
pub(super) struct PackWriter {
    file: Option<MappedFileMut>,
    entries: Vec<PackEntry>,
    temporary: PathBuf,
    target: Arc<Path>,
    index: Arc<Mutex<PackIndex>>,
}

impl PackWriter {
    /// `target` contains the hash of all blobs, so writers of the same blobs write the same file.
    pub(super) fn new(
        file: MappedFileMut,
        entries: Vec<PackEntry>,
        target: PathBuf,
        index: Arc<Mutex<PackIndex>>,
    ) -> Self {
        Self { temporary: file.path().to_path_buf(), file: Some(file), entries, target: target.into(), index }
    }

    /// Renames the pack to its final name, replacing a file of that name.
    fn replace(&self) -> io::Result<()> {
        std::fs::rename(&self.temporary, &self.target)
    }

    fn io(&self, error: &io::Error) -> Error {
        Error::io("cannot write a pack", error).in_file(&self.target)
    }
}

impl PackMut for PackWriter {
    fn entry_mut(&mut self, index: usize) -> &mut [u8] {
        let range = self.entries[index].range.clone();
        self.file.as_mut().map(|file| &mut file.bytes_mut()[range]).unwrap_or_default()
    }

    fn commit(mut self: Box<Self>) -> Result<Vec<BlobLocation>> {
        let mut file = self.file.take().ok_or_else(|| Error::new(ErrorKind::Conflict, "committed already"))?;
        write_table(&self.entries, file.bytes_mut());
        // The bytes are on the disk before the final name is, so a pack that is found after a crash is complete.
        file.sync()?;
        let mut index = lock(&self.index);
        // Unlike a rename, a link does not replace an existing pack, which other processes may map.
        match std::fs::hard_link(&self.temporary, &self.target) {
            Ok(()) => drop(std::fs::remove_file(&self.temporary)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                index.scan();
                // Another writer was faster: its pages are shared, unless they are damaged.
                if let Some(located) = index.find_in(&self.target, &self.entries) {
                    return Ok(located);
                }
                self.replace().map_err(|error| self.io(&error))?;
            }
            // On a file system without links, the last writer of the same blobs wins, and nothing is lost.
            Err(_) => self.replace().map_err(|error| self.io(&error))?,
        }
        // Only now, because each of the calls above gave the file another stamp.
        let mapping = Arc::new(file.into_mapped()?);
        index.add_written(&self.target, &mapping, &self.entries);
        drop(index);
        if let Some(folder) = self.target.parent() {
            File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| self.io(&error))?;
        }
        let located = |entry: &PackEntry| (Arc::clone(&mapping) as Arc<dyn Segment>, entry.range.clone());
        Ok(self.entries.iter().map(located).collect())
    }
}

impl Drop for PackWriter {
    fn drop(&mut self) {
        // After a rename the file does not exist any more.
        let _ = std::fs::remove_file(&self.temporary);
    }
}
