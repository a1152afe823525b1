//! Opening files by names that are known in advance: logs, locks, tokens and the configuration.

use rustix::fs::{Mode, OFlags, open};
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const ROOT: u32 = 0;

/// Opens the regular file at `path` with `flags`; a file that `CREATE` makes has mode 0600. A link, a pipe, a device or a
/// folder with this name is refused, and none of them makes the call wait.
///
/// # Errors
/// `InvalidInput` for a file that is not regular; `PermissionDenied` for one of another user than this one and root; those of the
/// system.
pub fn open_regular(path: &Path, flags: OFlags) -> Result<File> {
    open_checked(path, flags | OFlags::NOFOLLOW)
}

/// As [`open_regular`]; a link is followed, because users may link their own files.
///
/// # Errors
/// As [`open_regular`].
pub fn open_regular_or_link(path: &Path, flags: OFlags) -> Result<File> {
    open_checked(path, flags)
}

fn open_checked(path: &Path, flags: OFlags) -> Result<File> {
    // Opening a pipe would wait for its other end.
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let not_regular = || Error::new(ErrorKind::InvalidInput, "not a regular file; remove it");
    let file = match open(path, flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => File::from(file),
        // A link, a pipe without a reader, a socket and a folder.
        Err(rustix::io::Errno::LOOP | rustix::io::Errno::NXIO | rustix::io::Errno::ISDIR) => return Err(not_regular()),
        Err(error) => return Err(error.into()),
    };
    let found = file.metadata()?;
    match found.uid() {
        _ if !found.is_file() => Err(not_regular()),
        owner if owner != rustix::process::geteuid().as_raw() && owner != ROOT => {
            Err(Error::new(ErrorKind::PermissionDenied, format!("this file belongs to another user ({owner})")))
        }
        _ => Ok(file),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, mknodat};
    use std::os::unix::fs::{chown, symlink};
    use std::os::unix::net::UnixListener;

    #[test]
    fn only_regular_files_are_opened_and_no_other_file_blocks() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let append = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
        let file = open_regular(&at("file"), append).unwrap();
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
        mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        symlink(at("file"), at("link")).unwrap();
        symlink(at("none"), at("dangling")).unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        for name in ["pipe", "link", "dangling", "socket", ""] {
            for flags in [append, OFlags::RDONLY, OFlags::RDWR | OFlags::CREATE] {
                let refused = open_regular(&at(name), flags).err();
                assert_eq!(refused.map(|error| error.kind()), Some(ErrorKind::InvalidInput), "{name:?} {flags:?}");
            }
        }
        assert!(!at("none").exists());
        open_regular_or_link(&at("link"), OFlags::RDONLY).unwrap();
        open_regular_or_link(&at("pipe"), OFlags::RDONLY).unwrap_err();
        open_regular_or_link(Path::new("/dev/zero"), OFlags::RDONLY).unwrap_err();
        // Only root can give a file away.
        if rustix::process::geteuid().as_raw() == ROOT {
            chown(at("file"), Some(65_534), None).unwrap();
            for opened in [open_regular(&at("file"), append), open_regular_or_link(&at("link"), OFlags::RDONLY)] {
                assert_eq!(opened.unwrap_err().kind(), ErrorKind::PermissionDenied);
            }
        }
        assert_eq!(open_regular(&at("none"), OFlags::RDONLY).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
