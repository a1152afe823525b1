//! The process at the other end of a Unix socket.

use std::os::fd::{AsRawFd, BorrowedFd};

/// The credentials of the process that connected or listened, as the kernel recorded them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Its effective user, as this process's user namespace numbers it.
    pub uid: u32,
    /// Its number in this process's PID namespace; `None` where it has none here, as across containers.
    pub pid: Option<i32>,
}

impl PeerCredentials {
    /// Whether it is a process of the user that this process runs as.
    pub fn is_own_user(&self) -> bool {
        self.uid == rustix::process::geteuid().as_raw()
    }
}

/// The credentials of the process at the other end of `socket`.
///
/// rustix's `socket_peercred` is of no use here: its process number cannot be 0, which the kernel reports for a process of
/// another PID namespace.
///
/// # Errors
/// The system's, for a descriptor that is no connected Unix socket.
pub fn peer_credentials(socket: BorrowedFd<'_>) -> std::io::Result<PeerCredentials> {
    let mut found = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let size = size_of::<libc::ucred>();
    let mut len = size as libc::socklen_t;
    // SAFETY: `found` and `len` live through the call, and the kernel writes at most `len` bytes, the size of `found`. Every
    // bit pattern is a valid ucred.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast::<libc::c_void>(),
            &raw mut len,
        )
    };
    if outcome != 0 {
        return Err(std::io::Error::last_os_error());
    }
    if len as usize != size {
        return Err(std::io::Error::other("the kernel's credentials have another length"));
    }
    Ok(PeerCredentials { uid: found.uid, pid: Some(found.pid).filter(|pid| *pid > 0) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_peer_of_a_pair_is_this_process() {
        let (one, _two) = UnixStream::pair().unwrap();
        let me = PeerCredentials { uid: rustix::process::geteuid().as_raw(), pid: Some(std::process::id() as i32) };
        assert_eq!(peer_credentials(one.as_fd()).unwrap(), me);
        assert!(me.is_own_user() && !PeerCredentials { uid: u32::MAX, ..me }.is_own_user());
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(peer_credentials(file.as_fd()).is_err());
    }
}
