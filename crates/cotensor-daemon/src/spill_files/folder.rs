//! Folders of spilled segments: their names, and the folders of dead daemons.

use cotensor_client::{Others, open_regular, private_folder};
use cotensor_core::{ContentHash, Error, Result};
use cotensor_supervisor::remove_folder;
use rustix::fs::{FlockOperation, OFlags, flock};
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The prefix of a daemon's folder.
const PREFIX: &str = "cotensor-";
/// The file in it that names the daemon: it contains the path of the daemon's socket.
pub(super) const OWNER: &str = "socket";
/// The most bytes of a path.
const OWNER_BYTES_MAX: u64 = 4096;

/// The folder of the daemon at `socket` below `folder`.
///
/// # Errors
/// `Io` when the current folder is not known.
pub(crate) fn folder_of(folder: &Path, socket: &Path) -> Result<PathBuf> {
    let (folder, socket) = (absolute(folder)?, absolute(socket)?);
    let name = ContentHash::of(socket.as_os_str().as_encoded_bytes()).to_string();
    Ok(folder.join(format!("{PREFIX}{}", &name[..16])))
}

/// Absolute paths, because a later daemon may have another current folder.
pub(super) fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|error| Error::io("finding the current folder", &error).in_file(path))
}

/// Removes the folders below `below` whose daemons are dead: no process has the lock of the socket.
pub(super) fn remove_abandoned(below: &Path, own: &Path) {
    let entries = std::fs::read_dir(below).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX)) {
        let folder = entry.path();
        // A folder of another user, or not of a daemon.
        if folder == own || private_folder(&folder, Others::None).is_err() {
            continue;
        }
        let mut lock = Vec::new();
        let owner = open_regular(&folder.join(OWNER), OFlags::RDONLY);
        if owner.and_then(|owner| owner.take(OWNER_BYTES_MAX).read_to_end(&mut lock)).is_err() {
            continue;
        }
        lock.extend_from_slice(b".lock");
        let lock = PathBuf::from(OsString::from_vec(lock));
        let held = match open_regular(&lock, OFlags::RDWR) {
            Ok(lock) => flock(&lock, FlockOperation::NonBlockingLockShared).is_err(),
            Err(error) => error.kind() != std::io::ErrorKind::NotFound,
        };
        if !held {
            tracing::info!("removing the spill folder of a dead daemon: {}", folder.display());
            remove_folder(&folder);
        }
    }
}
