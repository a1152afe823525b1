//! A listening Unix socket and its file, which a program or a user may remove or replace.

use cotensor_client::{ShortPath, bind_unix};
use cotensor_core::{Error, ErrorKind, Result};
use rustix::fs::{Mode, OFlags, fstat, lstat, open};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// A listening socket with mode 0600, in non-blocking mode.
#[derive(Debug)]
pub(crate) struct Bound {
    listener: UnixListener,
    path: PathBuf,
    /// The socket's file, opened with `O_PATH`. The system does not reuse the inode number of an open file, so it can
    /// be compared with the number of the file at `path`. `None` if there was no such file.
    file: Option<OwnedFd>,
    /// Whether a service manager made the file and removes it.
    is_managed: bool,
}

impl Bound {
    /// Listens at `path`. The socket is bound under a temporary name, gets its mode, and is renamed, which replaces the
    /// file at `path`: other users can never open it.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn bind(path: &Path) -> Result<Self> {
        let io = |error: std::io::Error| Error::io("listening", &error).in_file(path);
        let mut new_path = path.as_os_str().to_owned();
        new_path.push(format!(".{}", std::process::id()));
        let new_path = PathBuf::from(new_path);
        let _ = std::fs::remove_file(&new_path);
        let listener = bind_unix(&new_path).map_err(io)?;
        let ready = || -> std::io::Result<OwnedFd> {
            std::fs::set_permissions(&new_path, std::fs::Permissions::from_mode(0o600))?;
            let file = open_path(&new_path)?;
            std::fs::rename(&new_path, path)?;
            listener.set_nonblocking(true)?;
            Ok(file)
        };
        match ready() {
            Ok(file) => Ok(Self { listener, path: path.to_path_buf(), file: Some(file), is_managed: false }),
            Err(error) => {
                let _ = std::fs::remove_file(&new_path);
                Err(io(error))
            }
        }
    }

    /// A socket that another process has bound. Without `file`, its file is the one at `path`.
    pub(super) fn from_parts(listener: UnixListener, path: PathBuf, file: Option<OwnedFd>) -> Self {
        let file = file.or_else(|| open_path(&path).ok());
        Self { listener, path, file, is_managed: false }
    }

    /// Whether clients that connect to the path reach this socket.
    pub(crate) fn is_in_place(&self) -> bool {
        self.file.as_ref().is_some_and(|file| is_at(file.as_fd(), &self.path))
    }

    /// Leaves the file to a service manager.
    pub(super) fn leave_file(&mut self) {
        self.is_managed = true;
    }

    /// Removes the socket's file, unless another file has replaced it or a service manager has made it.
    pub(crate) fn remove(&self) {
        if !self.is_managed && self.is_in_place() {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    pub(crate) fn listener(&self) -> &UnixListener {
        &self.listener
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }
}

fn open_path(path: &Path) -> std::io::Result<OwnedFd> {
    Ok(open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?)
}

/// Whether the file at `path` is the one that `file` has open.
pub(super) fn is_at(file: BorrowedFd<'_>, path: &Path) -> bool {
    match (fstat(file), lstat(path)) {
        (Ok(own), Ok(found)) => (own.st_dev, own.st_ino) == (found.st_dev, found.st_ino),
        _ => false,
    }
}

/// Removes the socket of a dead daemon at `path`. The caller has the lock.
///
/// # Errors
/// `Conflict` for a socket on which a process listens, and for a file that is not a socket; `Io`.
pub(super) fn clear(path: &Path) -> Result<()> {
    let io = |what: &'static str| move |error: std::io::Error| Error::io(what, &error).in_file(path);
    let conflict = |message| Err(Error::new(ErrorKind::Conflict, message).in_file(path));
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            conflict("a file that is not a socket is here: remove it, or name another path")
        }
        // The lock's file of that daemon was removed; it makes another one within a second.
        Ok(_) if is_listened_on(path) => conflict("another daemon listens here"),
        Ok(_) => std::fs::remove_file(path).map_err(io("removing the socket of a former daemon")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(io("checking the socket")(error)),
    }
}

/// Whether a process listens on the socket at `path`. Does not block when its backlog is full.
pub(super) fn is_listened_on(path: &Path) -> bool {
    // No process can listen at such a path.
    let Ok(short) = ShortPath::of(path) else { return false };
    let connected = || -> rustix::io::Result<()> {
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)?;
        connect(&socket, &SocketAddrUnix::new(&*short)?)
    };
    !matches!(connected(), Err(Errno::CONNREFUSED | Errno::NOENT))
}
