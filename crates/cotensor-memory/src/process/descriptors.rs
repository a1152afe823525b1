//! How many descriptors this process may open, and which numbers they have.

use cotensor_core::{Error, ErrorKind, Result};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Once;

/// `FD_SETSIZE`: `select` takes no descriptor from this number on.
const SELECT_MAX: RawFd = 1024;
/// A process that may open any number is slow where it closes them all, as some do before they start another program.
const RAISED_MAX: u64 = 1 << 20;

/// Raises the soft limit of open descriptors of this process to the hard one, 2^20 at most: a tensor with memory of its own takes
/// one. Only the first call does; what the program sets afterwards stays.
///
/// The descriptors of tensors have numbers from 1024 on where there are as many, so that a program that uses `select`, which takes
/// none of those, finds the lower ones free.
pub fn raise_fd_limit() {
    static RAISED: Once = Once::new();
    RAISED.call_once(|| {
        let limit = getrlimit(Resource::Nofile);
        let wanted = limit.maximum.map_or(RAISED_MAX, |hard| hard.min(RAISED_MAX));
        if limit.current.is_some_and(|soft| soft < wanted) {
            let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit });
        }
    });
}

/// The same descriptor with a number that `select` does not take, where there is one.
pub(crate) fn move_above_select(fd: OwnedFd) -> OwnedFd {
    match fd.as_raw_fd() < SELECT_MAX {
        true => fcntl_dupfd_cloexec(&fd, SELECT_MAX).unwrap_or(fd),
        false => fd,
    }
}

/// A second descriptor of the same file.
///
/// # Errors
/// `OverBudget`, with a way out, when no more descriptors may be open; `Io`.
pub fn duplicate_fd(fd: impl AsFd) -> Result<OwnedFd> {
    fcntl_dupfd_cloexec(fd, 0).map_err(|error| fd_error("cannot duplicate_fd a descriptor", error))
}

/// The error of a call that makes a descriptor: `OverBudget`, with what to do, when no more may be open, else `Io`.
pub(crate) fn fd_error(what: &str, error: Errno) -> Error {
    match error {
        Errno::MFILE | Errno::NFILE => fd_limit_error(),
        error => Error::io(what, &error.into()),
    }
}

/// What is said when this process may open no more descriptors.
pub fn fd_limit_error() -> Error {
    let limit = getrlimit(Resource::Nofile).current.map_or_else(|| "no more".to_owned(), |limit| limit.to_string());
    let message = format!(
        "this process has as many descriptors open as it may ({limit}), and every large tensor takes one: release tensors, or \
         raise the limit (`ulimit -n`, LimitNOFILE of a service)"
    );
    Error::new(ErrorKind::OverBudget, message)
}
