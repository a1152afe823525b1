//! The socket that the daemon listens on: one daemon each, of this user alone.

use cotensor_core::{Error, ErrorKind, Result};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// A listening socket and the lock that keeps a second daemon away from it.
///
/// Dropping the one that bound it removes the socket. The lock's file stays: removing it would let two daemons hold "the" lock.
#[derive(Debug)]
pub struct Listening {
    listener: UnixListener,
    path: PathBuf,
    lock: OwnedFd,
    /// Whether the socket goes with this.
    owner: bool,
}

impl Listening {
    /// Listens at `path`, mode 0600; a socket that a dead daemon left is replaced.
    ///
    /// # Errors
    /// `Conflict` while another daemon lives or when something else is at `path`; `Io` for what the system refuses.
    pub fn bind(path: &Path) -> Result<Self> {
        let io = |what: &str| {
            let what = what.to_owned();
            move |error: std::io::Error| Error::io(what, &error).in_file(path)
        };
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(io("creating the socket's folder"))?;
        }
        let mut lock_path = path.as_os_str().to_owned();
        lock_path.push(".lock");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let lock = open(PathBuf::from(lock_path), flags, Mode::RUSR | Mode::WUSR);
        let lock = lock.map_err(|error| io("opening the socket's lock")(error.into()))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| Error::new(ErrorKind::Conflict, "another daemon listens here").in_file(path))?;
        match std::fs::symlink_metadata(path) {
            Ok(found) if found.file_type().is_socket() => {
                std::fs::remove_file(path).map_err(io("removing the socket of a former daemon"))?;
            }
            Ok(_) => {
                return Err(Error::new(ErrorKind::Conflict, "there is something here that is no socket").in_file(path));
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(io("looking at the socket")(error)),
        }
        // Bound under a name that nobody knows and closed to others before it gets its own: never open in between.
        let mut new_path = path.as_os_str().to_owned();
        new_path.push(format!(".{}", std::process::id()));
        let new_path = PathBuf::from(new_path);
        drop(std::fs::remove_file(&new_path));
        let listener = UnixListener::bind(&new_path).map_err(io("listening"))?;
        let ready = std::fs::set_permissions(&new_path, std::fs::Permissions::from_mode(0o600))
            .and_then(|()| std::fs::rename(&new_path, path))
            .and_then(|()| listener.set_nonblocking(true));
        if let Err(error) = ready {
            drop(std::fs::remove_file(&new_path));
            return Err(io("listening")(error));
        }
        Ok(Self { listener, path: path.to_path_buf(), lock, owner: true })
    }

    /// What another process has bound and locked.
    pub(crate) fn from_parts(listener: UnixListener, path: PathBuf, lock: OwnedFd) -> Self {
        Self { listener, path, lock, owner: false }
    }

    /// From now on the socket goes with this.
    pub(crate) fn own(&mut self) {
        self.owner = true;
    }

    /// Copies of the socket and of the lock, for another process.
    ///
    /// # Errors
    /// `Io` when no more descriptors may be open.
    pub(crate) fn descriptors(&self) -> Result<Vec<OwnedFd>> {
        let io = |error| Error::io("duplicating a descriptor", &error);
        Ok(vec![self.listener.try_clone().map_err(io)?.into(), self.lock.try_clone().map_err(io)?])
    }

    /// The listener, not blocking.
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if self.owner {
            drop(std::fs::remove_file(&self.path));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn one_daemon_at_a_time_and_a_stale_socket_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/cotensor.sock");
        let first = Listening::bind(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        UnixStream::connect(&path).unwrap();
        let second = Listening::bind(&path).unwrap_err();
        assert_eq!((second.kind(), second.file()), (ErrorKind::Conflict, Some(path.as_path())));
        UnixStream::connect(&path).unwrap();
        drop(first);
        assert!(!path.exists());

        // What a daemon that was killed leaves.
        drop(UnixListener::bind(&path).unwrap());
        assert!(UnixStream::connect(&path).is_err());
        let next = Listening::bind(&path).unwrap();
        UnixStream::connect(&path).unwrap();
        drop(next);

        std::fs::write(&path, "a file of the user's").unwrap();
        assert_eq!(Listening::bind(&path).unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(std::fs::read(&path).unwrap(), b"a file of the user's");
    }
}
