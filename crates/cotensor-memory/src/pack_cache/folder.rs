//! The private folders of the cache and their temporary files.

use cotensor_core::{Error, ErrorKind, Result};
use std::fs::Metadata;
use std::io::ErrorKind::AlreadyExists;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// Without file locks, the temporary file of an ended writer is removed after this time.
const ABANDONED_AFTER: Duration = Duration::from_secs(24 * 3600);
/// An unlocked temporary file is removed after this time. A writer has no lock just after it creates the file, and just
/// before it renames it.
pub(super) const UNLOCKED_AFTER: Duration = Duration::from_secs(60);

/// The start of the name of a file or folder that is being written.
const TEMPORARY: &str = ".tmp-";

/// Creates the folder `path` (mode 0700) if it does not exist. `stat` decides whether a link is followed.
///
/// # Errors
/// `Refused` for a file that is not a folder of this user, `Io`.
pub(super) fn private_folder(path: &Path, stat: impl Fn(&Path) -> std::io::Result<Metadata>) -> Result<Metadata> {
    let created = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    // The checks below report a file that is not a folder.
    let created = created.or_else(|error| if error.kind() == AlreadyExists { Ok(()) } else { Err(error) });
    let found = created.and_then(|()| stat(path));
    let found = found.map_err(|error| Error::io("cannot use this folder as a cache", &error).in_file(path))?;
    if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
        return Err(refused("not a folder of this user", &found).in_file(path));
    }
    Ok(found)
}

pub(super) fn refused(reason: &str, found: &Metadata) -> Error {
    let (owner, mode) = (found.uid(), found.mode() & 0o7777);
    Error::new(ErrorKind::Refused, format!("{reason} (owner {owner}, mode {mode:04o}); its mode must be 0700"))
}

/// Removes temporary files of ended writers.
pub(super) fn remove_abandoned(folder: &Path) {
    let now = SystemTime::now();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let age = entry.metadata().and_then(|file| file.modified()).ok().and_then(|at| now.duration_since(at).ok());
        let unlocked = || std::fs::File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok());
        let abandoned = |age| age > ABANDONED_AFTER || age > UNLOCKED_AFTER && unlocked();
        if is_temporary(&entry.path()) && age.is_some_and(abandoned) {
            // Another process may have removed it.
            let _ = if entry.path().is_dir() {
                std::fs::remove_dir_all(entry.path())
            } else {
                std::fs::remove_file(entry.path())
            };
        }
    }
}

/// Whether a writer has not yet given the file its name.
pub(super) fn is_temporary(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(TEMPORARY.as_bytes()))
}

/// A file name that no other writer chooses.
pub(super) fn temporary_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let nanos = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.subsec_nanos());
    format!("{TEMPORARY}{}-{number}-{nanos}", std::process::id())
}
