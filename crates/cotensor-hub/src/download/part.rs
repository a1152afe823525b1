//! The file with the bytes of a download that has not ended.

use rustix::fs::{Mode, OFlags, open};
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Opens the part that an earlier download left, or a new file. A link, a second name of another file, a pipe and a device
/// are removed: their bytes belong to another program.
pub(super) fn open_part(path: &Path) -> Result<File> {
    match open_plain(path, OFlags::RDWR) {
        Ok(part) if part.metadata()?.nlink() == 1 => return Ok(part),
        Ok(_) => std::fs::remove_file(path)?,
        Err(error) if error.kind() == ErrorKind::InvalidInput => std::fs::remove_file(path)?,
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    File::options().read(true).write(true).create_new(true).open(path)
}

/// Opens a regular file. Follows no link and waits for no pipe.
///
/// # Errors
/// `InvalidInput` for another kind of file; those of the system.
pub(super) fn open_plain(path: &Path, flags: OFlags) -> Result<File> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let not_regular = || Error::new(ErrorKind::InvalidInput, "not a regular file; remove it");
    let file = match open(path, flags, Mode::from_raw_mode(0o644)) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::LOOP | rustix::io::Errno::NXIO | rustix::io::Errno::ISDIR) => return Err(not_regular()),
        Err(error) => return Err(error.into()),
    };
    if file.metadata()?.is_file() { Ok(file) } else { Err(not_regular()) }
}
