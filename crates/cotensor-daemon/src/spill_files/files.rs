//! A daemon's folder of spilled segments.

use super::folder::{OWNER, absolute, folder_of, remove_abandoned};
use crate::state::spill::SpillTable;
use cotensor_client::{Others, private_folder};
use cotensor_core::sync::lock;
use cotensor_core::{Error, Result};
use cotensor_memory::process::random_bytes;
use cotensor_supervisor::remove_folder;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

/// A daemon's folder of spilled segments, mode 0700, below a folder that several daemons may share.
pub(crate) struct Files {
    pub(super) folder: PathBuf,
    /// The path of the daemon's socket, which identifies the daemon.
    owner: PathBuf,
    pub(crate) table: Arc<Mutex<SpillTable>>,
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
        let table = Arc::new(Mutex::new(SpillTable::new(folder.clone(), tag, bytes_max)));
        let files = Self { folder, owner: absolute(socket)?, table };
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

    /// Removes the folder.
    pub(crate) fn remove(&self) {
        remove_folder(&self.folder);
    }

    pub(super) fn table(&self) -> MutexGuard<'_, SpillTable> {
        lock(&self.table)
    }
}
