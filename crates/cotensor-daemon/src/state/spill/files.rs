//! A daemon's folder of spilled segments.

use super::file::{CONTEXT, PIECE_BYTES, SpillFile};
use super::folder::{OWNER, absolute, folder_of, remove_abandoned, remove_folder};
use cotensor_client::{Others, private_folder};
use cotensor_core::sync::lock;
use cotensor_core::{Error, ErrorKind, Hasher, Result, size};
use cotensor_memory::process::random_bytes;
use rustix::fs::{FallocateFlags, fallocate};
use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

/// A daemon's folder of spilled segments, mode 0700, below a folder that several daemons may share.
pub(crate) struct Files {
    pub(super) folder: PathBuf,
    /// The path of the daemon's socket, which identifies the daemon.
    owner: PathBuf,
    /// Part of each file's name: a daemon whose socket another one has taken removes only its own files.
    pub(super) tag: u32,
    bytes_max: u64,
    state: Mutex<FilesState>,
}

#[derive(Default)]
pub(super) struct FilesState {
    pub(super) next: u64,
    pub(super) bytes: u64,
    pub(super) files: HashMap<u64, SpillFile>,
}

impl Files {
    /// Creates the folder if it is missing, and removes the folders of dead daemons. The caller has the lock of
    /// `socket`.
    ///
    /// # Errors
    /// `Refused` for a folder that other users can open; `Io`.
    pub(crate) fn open(below: &Path, socket: &Path, bytes_max: u64) -> Result<Arc<Self>> {
        let below = &absolute(below)?;
        private_folder(below, Others::Harmless)?;
        let folder = folder_of(below, socket)?;
        let tag = u32::from_ne_bytes(random_bytes()?);
        let files = Self { folder, owner: absolute(socket)?, tag, bytes_max, state: Mutex::default() };
        files.make_folder()?;
        remove_abandoned(below, &files.folder);
        Ok(Arc::new(files))
    }

    /// Creates the folder if it is missing.
    ///
    /// # Errors
    /// `Refused` for one that other users can open; `Io`.
    pub(super) fn make_folder(&self) -> Result<()> {
        private_folder(&self.folder, Others::None)?;
        std::fs::write(self.folder.join(OWNER), self.owner.as_os_str().as_encoded_bytes())
            .map_err(|error| Error::io("writing", &error).in_file(&self.folder))
    }

    /// The file with a number.
    pub(crate) fn file(&self, number: u64) -> Option<SpillFile> {
        self.state().files.get(&number).cloned()
    }

    /// Removes the folder.
    pub(crate) fn remove(&self) {
        remove_folder(&self.folder);
    }

    pub(super) fn state(&self) -> MutexGuard<'_, FilesState> {
        lock(&self.state)
    }

    /// A number for a file of `bytes` bytes.
    pub(super) fn reserve(&self, bytes: u64) -> Result<u64> {
        let mut state = self.state();
        if state.bytes.checked_add(bytes).is_none_or(|total| total > self.bytes_max) {
            let message = format!(
                "{} are spilled: {} more are beyond --max-spill {}",
                size(state.bytes),
                size(bytes),
                size(self.bytes_max)
            );
            return Err(Error::new(ErrorKind::OverBudget, message).in_file(&self.folder));
        }
        state.bytes += bytes;
        state.next += 1;
        Ok(state.next)
    }

    pub(super) fn write(&self, path: &Path, source: &File, bytes: u64) -> std::io::Result<String> {
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        match fallocate(&file, FallocateFlags::empty(), 0, bytes.max(1)) {
            // Not every file system can reserve space.
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => file.set_len(bytes)?,
            Err(error) => return Err(error.into()),
        }
        let mut piece = vec![0; PIECE_BYTES];
        let mut hasher = Hasher::new(CONTEXT);
        let mut at = 0;
        while at < bytes {
            let len = PIECE_BYTES.min((bytes - at) as usize);
            source.read_exact_at(&mut piece[..len], at)?;
            hasher.field(&piece[..len]);
            file.write_all(&piece[..len])?;
            at += len as u64;
        }
        Ok(hasher.finish().to_string())
    }
}
