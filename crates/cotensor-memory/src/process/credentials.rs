//! The credentials of the process at the other end of a Unix socket (`SO_PEERCRED`).

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::OnceLock;

/// The credentials of a peer, as the kernel recorded them when it connected or listened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// The effective user id, in this process's user namespace.
    pub uid: u32,
    /// The process id in this process's PID namespace; `None` when it has none there, as in another container.
    pub pid: Option<i32>,
}

impl PeerCredentials {
    /// Whether the peer runs as the same effective user as this process. False where users that the namespace does not map
    /// have the same number as this one.
    pub fn is_own_user(&self) -> bool {
        self.uid == rustix::process::geteuid().as_raw() && (self.uid != overflow_user() || are_all_mapped())
    }
}

/// The number that the kernel shows for users whom the user namespace does not map.
fn overflow_user() -> u32 {
    static NUMBER: OnceLock<u32> = OnceLock::new();
    *NUMBER.get_or_init(|| {
        let number = std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
        number.and_then(|number| number.trim().parse().ok()).unwrap_or(65_534)
    })
}

fn are_all_mapped() -> bool {
    maps_all(&std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default())
}

/// Whether a map has all users: the first number inside, the first one outside, and their count.
fn maps_all(map: &str) -> bool {
    map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}

/// The credentials of the process at the other end of `socket`.
///
/// rustix's `socket_peercred` does not fit: the kernel reports process id 0 for a process of another PID namespace,
/// which its `Pid` cannot hold.
///
/// # Errors
/// The system's error for a descriptor that is not a connected Unix socket.
pub fn peer_credentials(socket: BorrowedFd<'_>) -> std::io::Result<PeerCredentials> {
    let mut found = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let size = size_of::<libc::ucred>();
    let mut len = size as libc::socklen_t;
    // SAFETY: `found` and `len` are borrowed until after the call. The kernel writes at most `len` bytes, which is the
    // size of `found`, and every bit pattern is a valid `ucred`.
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
        return Err(std::io::Error::other("the kernel returned credentials of another length"));
    }
    Ok(PeerCredentials { uid: found.uid, pid: Some(found.pid).filter(|pid| *pid > 0) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn only_the_whole_map_has_all_users() {
        assert!(maps_all("         0          0 4294967295\n"));
        for map in ["", "0 1000 1\n", "65534 1000 1\n", "0 100000 65536\n"] {
            assert!(!maps_all(map), "{map:?}");
        }
    }

    #[test]
    fn peer_of_a_socket_pair_is_this_process() {
        let (one, _two) = UnixStream::pair().unwrap();
        let me = PeerCredentials { uid: rustix::process::geteuid().as_raw(), pid: Some(std::process::id() as i32) };
        assert_eq!(peer_credentials(one.as_fd()).unwrap(), me);
        assert!(me.is_own_user() && !PeerCredentials { uid: u32::MAX, ..me }.is_own_user());
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(peer_credentials(file.as_fd()).is_err());
    }
}
