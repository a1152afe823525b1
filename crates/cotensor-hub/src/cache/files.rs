//! Reading and replacing small files of the cache.

use cotensor_core::{Error, Result};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// The bytes of a file of at most `bytes_max` bytes. `None` when it does not exist or is longer.
pub(crate) fn read(path: &Path, bytes_max: u64) -> Result<Option<Vec<u8>>> {
    let file = match std::fs::File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        opened => opened,
    };
    let mut bytes = Vec::new();
    let read = file.and_then(|file| file.take(bytes_max + 1).read_to_end(&mut bytes));
    read.map_err(|error| Error::io("cannot read the hub's cache", &error).in_file(path))?;
    Ok((bytes.len() as u64 <= bytes_max).then_some(bytes))
}

/// Writes a file under another name and renames it, so that no program reads a part of it.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let written = std::fs::create_dir_all(path.parent().unwrap_or(path)).and_then(|()| replace(path, bytes));
    written.map_err(|error| Error::io("cannot write the hub's cache", &error).in_file(path))
}

/// As [`write`], in a folder that exists.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let beside = beside(path);
    // A new file: a link with this name is not followed.
    let mut file = std::fs::File::create_new(&beside)?;
    let written = file.write_all(bytes).and_then(|()| std::fs::rename(&beside, path));
    written.inspect_err(|_| drop(std::fs::remove_file(&beside)))
}

/// A name beside `path` that no other process and no other thread uses. What has the name is left over and removed.
pub(super) fn beside(path: &Path) -> PathBuf {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let (process, next) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let beside = path.with_file_name(format!(".{name}.{process}-{next}.tmp"));
    // There is none, except after a process with the same number was killed.
    let _ = std::fs::remove_file(&beside);
    beside
}
