//! Replaces files atomically.

use cotensor_core::{Error, Result};
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

/// Replaces `path` atomically: writes a temporary file beside it with `fill` and renames that. Pipes and devices are
/// written directly.
///
/// # Errors
/// `Io` with the path when the system refuses, `Invalid` when it refuses because of the path; those of `fill`. The
/// temporary file is removed then.
pub fn replace(path: &Path, fill: impl FnOnce(&mut BufWriter<File>) -> Result<()>) -> Result<()> {
    let io = |error: std::io::Error| file_error("cannot write", &error, path);
    if std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        let file = File::options().write(true).open(path).map_err(io)?;
        return fill(&mut BufWriter::new(file)).map_err(|error| error.in_file(path));
    }
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}.part", std::process::id()));
    let beside = PathBuf::from(beside);
    let file = File::options().write(true).create_new(true).open(&beside).map_err(io)?;
    let written = fill(&mut BufWriter::new(file)).and_then(|()| std::fs::rename(&beside, path).map_err(io));
    if written.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    written.map_err(|error| error.in_file(path))
}

/// An error of a file that the user named. Missing permissions are `Invalid`: the user can correct them.
pub fn file_error(what: &str, error: &std::io::Error, file: &Path) -> Error {
    use std::io::ErrorKind::{AlreadyExists, PermissionDenied, ReadOnlyFilesystem};
    let found = Error::io(what, error).in_file(file);
    match error.kind() {
        AlreadyExists | PermissionDenied | ReadOnlyFilesystem => Error::invalid(found.message()).in_file(file),
        _ => found,
    }
}
