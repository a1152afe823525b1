//! Temporary folders on the disk of the cache.

use crate::measure::WORKER_TIMEOUT;
use cotensor::core::{Error, Result};
use std::path::Path;

/// A temporary folder below `cache`, and so on the same disk.
pub(crate) fn empty_folder(cache: &Path, prefix: &str) -> Result<tempfile::TempDir> {
    let made = std::fs::create_dir_all(cache).and_then(|()| tempfile::Builder::new().prefix(prefix).tempdir_in(cache));
    made.map_err(|error| Error::io("cannot create a folder", &error).in_file(cache))
}

/// Removes folders of killed demos from `folder`: those with this prefix that are older than any running worker.
pub(crate) fn remove_stale(folder: &Path, prefix: &str) -> Result<()> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(|error| Error::io("cannot list", &error).in_file(folder))?,
    };
    for entry in entries.flatten() {
        let age = entry.metadata().and_then(|data| data.modified()).ok().and_then(|time| time.elapsed().ok());
        let ours = entry.file_name().to_string_lossy().starts_with(prefix);
        if ours && age.is_some_and(|age| age > 2 * WORKER_TIMEOUT) {
            // Best effort: a folder that cannot be removed does no harm.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::time::SystemTime;

    const PREFIX: &str = ".cold-";

    #[test]
    fn only_old_folders_with_the_prefix_are_removed() {
        let cache = tempfile::tempdir().unwrap();
        let old = SystemTime::now() - 3 * WORKER_TIMEOUT;
        for (name, is_old) in [(".cold-old", true), (".cold-new", false), ("packs", true)] {
            let folder = cache.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            if is_old {
                File::open(folder).unwrap().set_modified(old).unwrap();
            }
        }
        remove_stale(cache.path(), PREFIX).unwrap();
        let left = |name: &str| cache.path().join(name).is_dir();
        assert_eq!([left(".cold-old"), left(".cold-new"), left("packs")], [false, true, true]);
        remove_stale(&cache.path().join("absent"), PREFIX).unwrap();
        let cold = empty_folder(&cache.path().join("fresh"), PREFIX).unwrap();
        assert!(cold.path().is_dir());
    }
}
