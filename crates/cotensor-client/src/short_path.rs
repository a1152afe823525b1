//! Unix sockets whose path is longer than an address of the kernel can be.

use crate::daemon_process::daemon_report;
use cotensor_core::waiting::Waiting;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::io::{Error, ErrorKind, Result};
use std::ops::Deref;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The most bytes of a socket's path: `sun_path` of `sockaddr_un` has 108, the last of which is zero.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;
/// How long a connection waits for a place in the listener's queue.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(10);
const QUEUE_RETRY_INTERVAL: Duration = Duration::from_millis(5);
/// The descriptors of this process, as files.
const DESCRIPTORS: &str = "/proc/self/fd";

/// A path of at most [`SOCKET_PATH_BYTES_MAX`] bytes at which a socket can be bound or connected. For a longer path it leads
/// through a descriptor of the folder, `/proc/self/fd/N/NAME`, and is valid while this value lives.
#[derive(Debug)]
pub struct ShortPath {
    path: PathBuf,
    /// The folder, which the path names.
    _folder: Option<OwnedFd>,
}

impl ShortPath {
    /// A path by which the kernel finds `path`.
    ///
    /// # Errors
    /// `InvalidInput` with the length and the limit when the file's name alone is too long; those of opening the folder.
    pub fn of(path: &Path) -> Result<Self> {
        if length(path) <= SOCKET_PATH_BYTES_MAX {
            return Ok(Self { path: path.to_path_buf(), _folder: None });
        }
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return Err(too_long(path)) };
        let folder = open(folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let short = Path::new(DESCRIPTORS).join(folder.as_raw_fd().to_string()).join(name);
        // Without /proc there is no such path.
        if length(&short) > SOCKET_PATH_BYTES_MAX || !Path::new(DESCRIPTORS).is_dir() {
            return Err(too_long(path));
        }
        Ok(Self { path: short, _folder: Some(folder) })
    }
}

/// Connects to the Unix socket at a path of any length.
///
/// # Errors
/// `TimedOut` when the listener's queue is full for ten seconds; those of [`ShortPath::of`] and of connecting.
pub fn connect_unix(path: &Path) -> Result<UnixStream> {
    let short = ShortPath::of(path)?;
    let address = SocketAddrUnix::new(&*short)?;
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let start = Instant::now();
    let describe = || daemon_report(path, "to accept connections");
    let waiting = Waiting::new(&describe);
    loop {
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        match connect(&socket, &address) {
            Ok(()) => {
                let stream = UnixStream::from(socket);
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            // The queue is full. A blocking socket would wait without a limit, and a signal would end its wait.
            Err(Errno::AGAIN) if start.elapsed() < QUEUE_TIMEOUT => {
                waiting.check();
                std::thread::sleep(QUEUE_RETRY_INTERVAL);
            }
            Err(Errno::AGAIN) => {
                let message = "the process that listens here accepts no connections: its queue is full";
                return Err(Error::new(ErrorKind::TimedOut, message));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Listens at a path of any length.
///
/// # Errors
/// Those of [`ShortPath::of`] and of binding.
pub fn bind_unix(path: &Path) -> Result<UnixListener> {
    UnixListener::bind(ShortPath::of(path)?)
}

impl Deref for ShortPath {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

impl AsRef<Path> for ShortPath {
    fn as_ref(&self) -> &Path {
        self
    }
}

fn length(path: &Path) -> usize {
    path.as_os_str().as_bytes().len()
}

fn too_long(path: &Path) -> Error {
    let message = format!(
        "the socket's path has {} bytes, and the kernel allows {SOCKET_PATH_BYTES_MAX}: name a shorter one with --socket \
         or COTENSOR_SOCKET",
        length(path)
    );
    Error::new(ErrorKind::InvalidInput, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_with_a_path_of_any_length_is_bound_and_connected() {
        let folder = tempfile::tempdir().unwrap();
        let base = length(folder.path());
        for bytes in [SOCKET_PATH_BYTES_MAX - 1, SOCKET_PATH_BYTES_MAX, SOCKET_PATH_BYTES_MAX + 1, 300, 1000] {
            // Folders of 50 bytes, and a last one that gives the path its length.
            let mut deep = folder.path().to_path_buf();
            let mut left = bytes - base - "/s.sock".len();
            while left > 100 {
                deep.push("d".repeat(49));
                left -= 50;
            }
            deep.push("d".repeat(left - 1));
            std::fs::create_dir_all(&deep).unwrap();
            let path = deep.join("s.sock");
            assert_eq!(length(&path), bytes);
            let _listener = bind_unix(&path).unwrap();
            assert!(path.exists(), "{bytes}");
            connect_unix(&path).unwrap();
        }
    }

    #[test]
    fn too_long_a_name_is_refused_with_its_length_and_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("n".repeat(200));
        let error = ShortPath::of(&path).unwrap_err();
        let (message, length) = (error.to_string(), length(&path).to_string());
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(message.contains(&length) && message.contains("107"), "{message}");
        let missing = folder.path().join("m".repeat(120)).join("s.sock");
        assert_eq!(ShortPath::of(&missing).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
