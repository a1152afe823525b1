//! A pack on its way into the cache.

use super::format::{PackEntry, write_table};
use super::index::PackIndex;
use crate::host::MappedFileMut;
use cotensor_core::{Error, ErrorKind, Located, PackMut, Result, Segment};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Written under a temporary name; committing gives it its own.
pub(super) struct NewPack {
    file: Option<MappedFileMut>,
    entries: Vec<PackEntry>,
    temporary: PathBuf,
    target: Arc<Path>,
    index: Arc<Mutex<PackIndex>>,
}

impl NewPack {
    /// `target` names the pack by what it holds: whoever packs the same contents writes the same file.
    pub(super) fn new(
        file: MappedFileMut,
        entries: Vec<PackEntry>,
        target: PathBuf,
        index: Arc<Mutex<PackIndex>>,
    ) -> Self {
        Self { temporary: file.path().to_path_buf(), file: Some(file), entries, target: target.into(), index }
    }

    /// Renames the pack over whatever is there.
    fn replace(&self) -> io::Result<()> {
        std::fs::rename(&self.temporary, &self.target)
    }

    fn io(&self, error: &io::Error) -> Error {
        Error::io("cannot keep a pack", error).in_file(&self.target)
    }
}

impl PackMut for NewPack {
    fn entry_mut(&mut self, index: usize) -> &mut [u8] {
        let range = self.entries[index].range.clone();
        self.file.as_mut().map(|file| &mut file.bytes_mut()[range]).unwrap_or_default()
    }

    fn commit(mut self: Box<Self>) -> Result<Vec<Located>> {
        let mut file = self.file.take().ok_or_else(|| Error::new(ErrorKind::Conflict, "committed already"))?;
        write_table(&self.entries, file.bytes_mut());
        // The bytes are on the disk before their name is: a pack that is found after a crash is whole.
        file.sync()?;
        let mapping = Arc::new(file.into_mapped()?);

        let mut index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        // A link, unlike a rename, leaves a pack that is there already to those who map it.
        match std::fs::hard_link(&self.temporary, &self.target) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                index.scan();
                // Somebody else was faster: his pages serve everybody, unless they are damaged.
                if let Some(located) = index.find_in(&self.target, &self.entries) {
                    return Ok(located);
                }
                self.replace().map_err(|error| self.io(&error))?;
            }
            // A file system without links: the last one who writes the same contents wins, and nothing is lost.
            Err(_) => self.replace().map_err(|error| self.io(&error))?,
        }
        index.adopt_written(&self.target, &mapping, &self.entries);
        drop(index);
        if let Some(folder) = self.target.parent() {
            File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| self.io(&error))?;
        }
        let located = |entry: &PackEntry| (Arc::clone(&mapping) as Arc<dyn Segment>, entry.range.clone());
        Ok(self.entries.iter().map(located).collect())
    }
}

impl Drop for NewPack {
    fn drop(&mut self) {
        // After a rename it is gone already.
        let _ = std::fs::remove_file(&self.temporary);
    }
}
