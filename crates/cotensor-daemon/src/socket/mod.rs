//! The socket that the daemon listens on: one daemon each, of this user alone.

use crate::place::{Others, private_folder};
use cotensor_core::{Error, ErrorKind, Result};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, ftruncate, open};
use rustix::io::{pread, pwrite};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a daemon that was just killed may take to let go of its lock.
const DYING: Duration = Duration::from_secs(1);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(10);

/// Whether the lock is this process's now.
fn locked(lock: &OwnedFd) -> bool {
    let start = Instant::now();
    loop {
        match flock(lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return true,
            Err(_) if start.elapsed() > DYING => return false,
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// A listening socket and the lock that keeps a second daemon away from it.
///
/// Dropping the one that bound it removes the socket. The lock's file stays: removing it would let two daemons hold "the" lock.
/// It says which process to end to end the daemon, and nothing once that has ended.
#[derive(Debug)]
pub struct Listening {
    listener: UnixListener,
    path: PathBuf,
    lock: OwnedFd,
    /// Whether the socket goes with this.
    owner: bool,
    /// Whether the lock says that this process is responsible.
    named: bool,
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
            // In the temp folder anybody can be there first.
            let fallback = folder == cotensor_client::fallback_folder();
            private_folder(folder, if fallback { Others::None } else { Others::Harmless })?;
        }
        let mut lock_path = path.as_os_str().to_owned();
        lock_path.push(".lock");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let lock = open(PathBuf::from(lock_path), flags, Mode::RUSR | Mode::WUSR);
        let lock = lock.map_err(|error| io("opening the socket's lock")(error.into()))?;
        if !locked(&lock) {
            let message = match holder(&lock) {
                Some(pid) => format!("another daemon listens here: process {pid}"),
                None => "another daemon listens here".to_owned(),
            };
            return Err(Error::new(ErrorKind::Conflict, message).in_file(path));
        }
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
        let listener = bind_private(path)?;
        let mut this = Self { listener, path: path.to_path_buf(), lock, owner: true, named: false };
        this.own();
        Ok(this)
    }

    /// What another process has bound and locked.
    pub(crate) fn from_parts(listener: UnixListener, path: PathBuf, lock: OwnedFd) -> Self {
        Self { listener, path, lock, owner: false, named: false }
    }

    /// From now on the socket goes with this, and this process is who others find responsible for it.
    pub(crate) fn own(&mut self) {
        (self.owner, self.named) = (true, true);
        let line = format!("{}\n", std::process::id());
        let written = ftruncate(&self.lock, 0).and_then(|()| pwrite(&self.lock, line.as_bytes(), 0));
        if let Err(error) = written {
            tracing::warn!("the lock does not say whose it is: {error}");
        }
    }

    /// Listens anew if the socket's file is gone; whether it was.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub(crate) fn mend(&mut self) -> Result<bool> {
        let gone = !self.path.exists();
        if gone {
            self.listener = bind_private(&self.path)?;
        }
        Ok(gone)
    }

    /// Whether the socket goes with this.
    pub(crate) fn is_owner(&self) -> bool {
        self.owner
    }

    /// Takes the socket away now; the lock stays.
    pub(crate) fn remove(&mut self) {
        if std::mem::take(&mut self.owner) {
            drop(std::fs::remove_file(&self.path));
        }
    }

    /// The socket stays for the process that goes on with it.
    pub(crate) fn disown(&mut self) {
        (self.owner, self.named) = (false, false);
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

/// The process that a lock's file names.
fn holder(lock: &OwnedFd) -> Option<u32> {
    let mut line = [0; 16];
    let len = pread(lock, &mut line, 0).ok()?;
    std::str::from_utf8(line.get(..len)?).ok()?.trim().parse().ok()
}

/// Listens at `path`, mode 0600, not blocking; what is there is replaced. Bound under a name that nobody knows and closed to
/// others before it gets its own: never open in between.
pub(crate) fn bind_private(path: &Path) -> Result<UnixListener> {
    let io = |error: std::io::Error| Error::io("listening", &error).in_file(path);
    let mut new_path = path.as_os_str().to_owned();
    new_path.push(format!(".{}", std::process::id()));
    let new_path = PathBuf::from(new_path);
    drop(std::fs::remove_file(&new_path));
    let listener = UnixListener::bind(&new_path).map_err(io)?;
    let ready = std::fs::set_permissions(&new_path, std::fs::Permissions::from_mode(0o600))
        .and_then(|()| std::fs::rename(&new_path, path))
        .and_then(|()| listener.set_nonblocking(true));
    if let Err(error) = ready {
        drop(std::fs::remove_file(&new_path));
        return Err(io(error));
    }
    Ok(listener)
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.remove();
        if self.named {
            // The number may soon be another process's.
            let _ = ftruncate(&self.lock, 0);
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
        assert!(second.message().contains(&format!("process {}", std::process::id())), "{second}");
        assert_eq!(std::fs::metadata(path.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
        UnixStream::connect(&path).unwrap();
        drop(first);
        assert!(!path.exists());
        let lock = path.with_file_name("cotensor.sock.lock");
        assert_eq!(std::fs::read(&lock).unwrap(), b"", "nobody is to be ended any more");

        // What a daemon that was killed leaves.
        drop(UnixListener::bind(&path).unwrap());
        assert!(UnixStream::connect(&path).is_err());
        let mut next = Listening::bind(&path).unwrap();
        UnixStream::connect(&path).unwrap();
        next.disown();
        drop(next);
        assert_eq!(
            std::fs::read_to_string(&lock).unwrap(),
            format!("{}\n", std::process::id()),
            "an heir writes its own"
        );
        std::fs::remove_file(&path).unwrap();

        std::fs::write(&path, "a file of the user's").unwrap();
        assert_eq!(Listening::bind(&path).unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(std::fs::read(&path).unwrap(), b"a file of the user's");
    }
}
