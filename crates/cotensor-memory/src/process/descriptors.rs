//! The limit of open file descriptors (`RLIMIT_NOFILE`) and the numbers of descriptors.

use cotensor_core::{Error, ErrorKind, Result};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Once;

/// `FD_SETSIZE`: `select` takes no descriptor with this number or a higher one.
const FD_SETSIZE: RawFd = 1024;
/// Some programs close every possible descriptor before they start another program, which takes long with a high limit.
const RAISED_LIMIT_MAX: u64 = 1 << 20;

/// Raises the soft limit of open descriptors to the hard limit, at most 2^20: every tensor in its own memfd takes a
/// descriptor. Only the first call has an effect, so a limit that the program sets later stays.
///
/// Descriptors of tensors get numbers from 1024 on if the limit allows it. The lower numbers stay free for programs
/// that use `select`.
pub fn raise_fd_limit() {
    static RAISED: Once = Once::new();
    RAISED.call_once(|| {
        let limit = getrlimit(Resource::Nofile);
        let wanted = limit.maximum.map_or(RAISED_LIMIT_MAX, |hard| hard.min(RAISED_LIMIT_MAX));
        if limit.current.is_some_and(|soft| soft < wanted) {
            let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit });
        }
    });
}

/// Moves a descriptor to a number that `select` does not take, if one is free.
pub(crate) fn move_above_select(fd: OwnedFd) -> OwnedFd {
    if fd.as_raw_fd() < FD_SETSIZE { fcntl_dupfd_cloexec(&fd, FD_SETSIZE).unwrap_or(fd) } else { fd }
}

/// Duplicates a descriptor, close-on-exec.
///
/// # Errors
/// `OverBudget` as [`fd_limit_error`] when the limit of descriptors is reached; `Io`.
pub fn duplicate_fd(fd: impl AsFd) -> Result<OwnedFd> {
    fcntl_dupfd_cloexec(fd, 0).map_err(|error| fd_error("cannot duplicate a descriptor", error))
}

/// Duplicates descriptors, as [`duplicate_fd`].
///
/// # Errors
/// As there.
pub fn duplicate_fds(fds: impl IntoIterator<Item: AsFd>) -> Result<Vec<OwnedFd>> {
    fds.into_iter().map(duplicate_fd).collect()
}

/// The error of a call that creates a descriptor: [`fd_limit_error`] when the limit is reached, else `Io`.
pub fn fd_error(what: &str, error: Errno) -> Error {
    match error {
        Errno::MFILE | Errno::NFILE => fd_limit_error(),
        error => Error::io(what, &error.into()),
    }
}

/// The error of a process that has reached its limit of open descriptors: kind `OverBudget`, with the ways out.
pub fn fd_limit_error() -> Error {
    let limit =
        getrlimit(Resource::Nofile).current.map_or_else(|| "of the system".to_owned(), |limit| limit.to_string());
    let message = format!(
        "this process has reached its limit of open descriptors ({limit}), and every large tensor takes one: release tensors or \
         raise the limit (`ulimit -n`, LimitNOFILE= of a systemd unit)"
    );
    Error::new(ErrorKind::OverBudget, message)
}
