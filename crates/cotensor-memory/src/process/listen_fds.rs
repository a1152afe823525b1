//! Descriptors that a service manager started this process with.

use cotensor_core::{Error, Result};
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// The first of them, by the protocol of `sd_listen_fds(3)`.
const FIRST: RawFd = 3;
/// More than any manager passes.
const COUNT_MAX: RawFd = 1 << 20;

static TAKEN: AtomicBool = AtomicBool::new(false);

/// The descriptors that the manager passed to this very process, with their names: none where `LISTEN_PID` names another, or
/// the second time. To be called at the start of a program.
///
/// # Errors
/// `Invalid` when the environment names descriptors that are not open.
pub fn listen_fds_with_names() -> Result<Vec<(String, OwnedFd)>> {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let own = variable("LISTEN_PID").parse() == Ok(std::process::id());
    if !own || TAKEN.swap(true, Ordering::SeqCst) {
        return Ok(Vec::new());
    }
    let wrong = || Error::invalid("this does not say how many descriptors there are").in_field("LISTEN_FDS");
    let count: RawFd = variable("LISTEN_FDS").parse().map_err(|_| wrong())?;
    if !(0..=COUNT_MAX).contains(&count) {
        return Err(wrong());
    }
    let names = variable("LISTEN_FDNAMES");
    let mut names = names.split(':');
    let mut found = Vec::new();
    for number in FIRST..FIRST + count {
        // SAFETY: only looked at, to learn whether it is open: the system says so for any number.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        let flags = fcntl_getfd(fd).map_err(|_| wrong())?;
        // What this process starts is not to have it.
        fcntl_setfd(fd.as_fd(), flags | FdFlags::CLOEXEC).map_err(|_| wrong())?;
        // SAFETY: the manager says, in an environment made for this process (`LISTEN_PID`), that it opened this number for it
        // to own; it is open, as was just seen; and `TAKEN` lets this be said once.
        let owned = unsafe { OwnedFd::from_raw_fd(number) };
        found.push((names.next().unwrap_or_default().to_owned(), owned));
    }
    Ok(found)
}
