use crate::cache::{RepoFile, Repository};
use cotensor_core::{Error, ErrorKind, Result, size};

/// Checks that the disk of the cache has room for the files that it lacks.
///
/// # Errors
/// `OverBudget` when the free space is smaller.
pub(crate) fn check(repository: &Repository, files: &[&RepoFile]) -> Result<()> {
    let lacking = files.iter().filter(|file| !repository.blob(file).exists());
    let needed: u64 = lacking.map(|file| file.size).fold(0, u64::saturating_add);
    let folder = repository.snapshots();
    let Ok(disk) = rustix::fs::statvfs(&folder) else { return Ok(()) };
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if needed > free {
        let message = format!("the files take {}; the disk of the hub's cache has {} left", size(needed), size(free));
        return Err(Error::new(ErrorKind::OverBudget, message).in_file(folder));
    }
    Ok(())
}
