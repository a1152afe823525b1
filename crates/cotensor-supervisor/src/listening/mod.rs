//! The listening socket and its lock: one daemon per socket, for one user.

mod bound;

pub(crate) use bound::Bound;

use cotensor_client::{DaemonLock, make_socket_folder, open_regular};
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_memory::process::lock_file;
use rustix::fs::{FlockOperation, OFlags, flock, ftruncate};
use rustix::io::{pread, pwrite};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The interval at which a daemon checks that the files of its socket and its lock are in place.
pub const SOCKET_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The time for a killed daemon to release its lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// The time for a daemon that has removed its socket to end and release its lock.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Locks the file of the socket at `path`. Waits for `timeout`, and after a time that is not zero also for a daemon that has removed
/// its socket and is about to end. Returns whether this process has the lock.
fn locked(lock: &OwnedFd, path: &Path, timeout: Duration) -> bool {
    let start = Instant::now();
    let is_ending = |waited| !timeout.is_zero() && waited < timeout + STOP_TIMEOUT && !bound::is_listened_on(path);
    let mut keep_waiting = || {
        let waited = start.elapsed();
        waited < timeout || is_ending(waited)
    };
    lock_file(lock, &format!("the daemon that ends at {}", path.display()), &mut keep_waiting).unwrap_or(false)
}

/// The folder of a socket with a shared lock: systemd-tmpfiles leaves a locked folder in `/tmp` alone, and with it the logs and
/// locks that are old. `None` for a folder that this process does not have to itself.
fn folder_in_use(path: &Path) -> Option<File> {
    let folder = File::open(path.parent()?).ok()?;
    (folder.metadata().ok()?.mode() & 0o077 == 0).then_some(())?;
    flock(&folder, FlockOperation::NonBlockingLockShared).ok()?;
    Some(folder)
}

/// A listening socket and the lock that keeps a second daemon away from it.
///
/// The owner removes the socket when it drops this, unless another daemon has replaced the file. The lock's file stays,
/// because two daemons could lock two files otherwise. It contains the process to end in order to end the daemon;
/// afterwards it is empty.
#[derive(Debug)]
pub struct Listening {
    socket: Bound,
    lock: OwnedFd,
    /// Whether dropping this removes the socket.
    owner: bool,
    /// Whether the lock's file names this process.
    named: bool,
    _folder: Option<File>,
}

impl Listening {
    /// Listens at `path` with mode 0600. Replaces the socket of a dead daemon.
    ///
    /// # Errors
    /// `Conflict` when another daemon is running or another file is at `path`; `Io`.
    pub fn bind(path: &Path) -> Result<Self> {
        make_socket_folder(path)?;
        let lock = take_lock(path, LOCK_TIMEOUT)?;
        bound::clear(path)?;
        let mut this =
            Self { socket: Bound::bind(path)?, lock, owner: true, named: false, _folder: folder_in_use(path) };
        this.own();
        Ok(this)
    }

    /// Listens on a socket that a service manager has bound at `path`.
    ///
    /// # Errors
    /// `Invalid` for a socket at another path; `Conflict` when another daemon has the lock; `Io`.
    pub(crate) fn activated(listener: UnixListener, path: &Path) -> Result<Self> {
        let io = |error: std::io::Error| Error::io("using the service manager's socket", &error).in_file(path);
        let found = listener.local_addr().map_err(io)?;
        if found.as_pathname() != Some(path) {
            let found = found.as_pathname().map_or_else(|| "no path".to_owned(), |found| found.display().to_string());
            let message = format!("the service manager's socket is at {found}: name the same path in both units");
            return Err(Error::invalid(message).in_file(path));
        }
        listener.set_nonblocking(true).map_err(io)?;
        make_socket_folder(path)?;
        let lock = take_lock(path, LOCK_TIMEOUT)?;
        let mut this = Self::from_parts(listener, path.to_path_buf(), lock, None);
        this.own();
        Ok(this)
    }

    /// Leaves the socket's file to a service manager, which has made it.
    pub(crate) fn leave_file(&mut self) {
        self.socket.leave_file();
    }

    /// A socket that another process has bound and locked. `file` is the socket's file; without it, the file at `path`.
    pub(crate) fn from_parts(listener: UnixListener, path: PathBuf, lock: OwnedFd, file: Option<OwnedFd>) -> Self {
        let _folder = folder_in_use(&path);
        Self { socket: Bound::from_parts(listener, path, file), lock, owner: false, named: false, _folder }
    }

    /// Makes this process the owner of the socket, and writes its number to the lock's file.
    pub(crate) fn own(&mut self) {
        (self.owner, self.named) = (true, true);
        self.sign();
    }

    /// Writes this process's number to the lock's file.
    fn sign(&self) {
        let line = format!("{}\n", std::process::id());
        let written = ftruncate(&self.lock, 0).and_then(|()| pwrite(&self.lock, line.as_bytes(), 0));
        if let Err(error) = written {
            tracing::warn!("the lock's file was not written: {error}");
        }
    }

    /// Makes the folder, the lock and the socket again if their files were removed or replaced. Returns whether one
    /// was.
    ///
    /// # Errors
    /// `Conflict` when another daemon has the socket; those of [`bind`](Self::bind).
    pub fn mend(&mut self) -> Result<bool> {
        let path = self.path().to_path_buf();
        let (locked, bound) = (self.has_lock(), self.socket.is_in_place());
        if locked && bound {
            return Ok(false);
        }
        make_socket_folder(&path)?;
        self._folder = folder_in_use(&path);
        if !locked {
            self.lock = take_lock(&path, Duration::ZERO)?;
            if self.named {
                self.sign();
            }
        }
        if !bound {
            bound::clear(&path)?;
            self.socket = Bound::bind(&path)?;
        }
        Ok(true)
    }

    /// Whether the lock's file is still the locked one, so that no other daemon can have the socket.
    pub(crate) fn has_lock(&self) -> bool {
        bound::is_at(self.lock.as_fd(), &DaemonLock::path(self.path()))
    }

    /// Whether another process listens at this daemon's path.
    pub fn is_displaced(&self) -> bool {
        !self.socket.is_in_place() && bound::is_listened_on(self.path())
    }

    /// Whether dropping this removes the socket.
    pub(crate) fn is_owner(&self) -> bool {
        self.owner
    }

    /// Removes the socket now and keeps the lock.
    pub(crate) fn remove(&mut self) {
        if std::mem::take(&mut self.owner) {
            self.socket.remove();
        }
    }

    /// Leaves the socket to another process.
    pub(crate) fn disown(&mut self) {
        (self.owner, self.named) = (false, false);
    }

    /// The socket, the lock and the socket's file, for another process.
    ///
    /// # Errors
    /// `Io` when the socket has no file.
    pub fn descriptors(&self) -> Result<[BorrowedFd<'_>; 3]> {
        let file = self.socket.file().ok_or_else(|| Error::new(ErrorKind::Io, "the socket has no file"))?;
        Ok([self.listener().as_fd(), self.lock.as_fd(), file])
    }

    /// The listener, in non-blocking mode.
    pub fn listener(&self) -> &UnixListener {
        self.socket.listener()
    }

    pub(crate) fn lock(&self) -> BorrowedFd<'_> {
        self.lock.as_fd()
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        self.socket.path()
    }
}

/// Locks the file beside the socket at `path`. Waits for `timeout` if another process has the lock.
///
/// # Errors
/// `Conflict` when another process has it; `Io`.
fn take_lock(path: &Path, timeout: Duration) -> Result<OwnedFd> {
    let lock_path = DaemonLock::path(path);
    loop {
        let lock = open_regular(&lock_path, OFlags::RDWR | OFlags::CREATE);
        let lock = lock.map_err(|error| Error::io("opening the socket's lock", &error).in_file(&lock_path))?;
        let lock = OwnedFd::from(lock);
        if !locked(&lock, path, timeout) {
            let message = match holder(&lock) {
                Some(pid) => format!("another daemon listens here: process {pid}"),
                None => "another daemon listens here".to_owned(),
            };
            return Err(Error::new(ErrorKind::Conflict, message).in_file(path));
        }
        // If the file was removed between opening and locking, the lock has no effect.
        if bound::is_at(lock.as_fd(), &lock_path) {
            return Ok(lock);
        }
    }
}

/// The process in a lock's file.
fn holder(lock: &OwnedFd) -> Option<u32> {
    let mut line = [0; 16];
    let len = pread(lock, &mut line, 0).ok()?;
    std::str::from_utf8(line.get(..len)?).ok()?.trim().parse().ok()
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.remove();
        if self.named {
            // The system may reuse the process number.
            let _ = ftruncate(&self.lock, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;

    #[test]
    fn second_daemon_is_refused_and_a_stale_socket_is_replaced() {
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
        let exclusive = FlockOperation::NonBlockingLockExclusive;
        let cleaner = File::open(path.parent().unwrap()).unwrap();
        assert!(flock(&cleaner, exclusive).is_err(), "a cleaner of old files leaves the folder alone");
        drop(first);
        flock(&cleaner, exclusive).unwrap();
        drop(cleaner);
        assert!(!path.exists());
        let lock = path.with_file_name("cotensor.sock.lock");
        assert_eq!(std::fs::read(&lock).unwrap(), b"", "the daemon has ended");

        // The socket file of a killed daemon.
        drop(UnixListener::bind(&path).unwrap());
        assert!(UnixStream::connect(&path).is_err());
        let mut next = Listening::bind(&path).unwrap();
        UnixStream::connect(&path).unwrap();
        next.disown();
        drop(next);
        assert_eq!(
            std::fs::read_to_string(&lock).unwrap(),
            format!("{}\n", std::process::id()),
            "a successor writes its own number"
        );
        std::fs::remove_file(&path).unwrap();

        std::fs::write(&path, "a file of the user's").unwrap();
        assert_eq!(Listening::bind(&path).unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(std::fs::read(&path).unwrap(), b"a file of the user's");
    }

    #[test]
    fn removed_socket_lock_or_folder_is_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/cotensor.sock");
        let lock = DaemonLock::path(&path);
        let mut listening = Listening::bind(&path).unwrap();
        assert!(!listening.mend().unwrap());
        let removals: [&dyn Fn(); 4] = [
            &|| std::fs::remove_file(&path).unwrap(),
            &|| std::fs::remove_file(&lock).unwrap(),
            &|| std::fs::remove_dir_all(path.parent().unwrap()).unwrap(),
            // Replaced by the socket of a process that is dead, whose inode may have the number of the one removed.
            &|| {
                std::fs::remove_file(&path).unwrap();
                drop(UnixListener::bind(&path).unwrap());
            },
        ];
        for remove in removals {
            remove();
            assert!(listening.mend().unwrap() && !listening.mend().unwrap());
            UnixStream::connect(&path).unwrap();
            assert_eq!(std::fs::read_to_string(&lock).unwrap(), format!("{}\n", std::process::id()));
        }
        assert_eq!(Listening::bind(&path).unwrap_err().kind(), ErrorKind::Conflict);
    }

    #[test]
    fn daemon_whose_lock_was_removed_keeps_its_socket() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cotensor.sock");
        let _first = Listening::bind(&path).unwrap();
        std::fs::remove_file(DaemonLock::path(&path)).unwrap();
        assert_eq!(Listening::bind(&path).unwrap_err().kind(), ErrorKind::Conflict);
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn file_in_the_place_of_the_socket_is_no_other_daemon() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cotensor.sock");
        let mut listening = Listening::bind(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "a file of the user's").unwrap();
        assert_eq!(listening.mend().unwrap_err().kind(), ErrorKind::Conflict);
        assert!(!listening.is_displaced(), "the daemon stays");
        std::fs::remove_file(&path).unwrap();
        assert!(listening.mend().unwrap());
    }

    #[test]
    fn replaced_daemon_removes_no_file_of_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cotensor.sock");
        let mut first = Listening::bind(&path).unwrap();
        for file in [&path, &DaemonLock::path(&path)] {
            std::fs::remove_file(file).unwrap();
        }
        let second = Listening::bind(&path).unwrap();
        assert_eq!(first.mend().unwrap_err().kind(), ErrorKind::Conflict);
        assert!(first.is_displaced());
        drop(first);
        UnixStream::connect(&path).unwrap();
        assert!(second.has_lock() && second.socket.is_in_place());
    }
}
