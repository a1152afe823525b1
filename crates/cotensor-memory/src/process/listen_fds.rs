//! Descriptors that a service manager passes to this process: `sd_listen_fds(3)`.

use cotensor_core::{Error, Result};
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// `SD_LISTEN_FDS_START`.
const FIRST: RawFd = 3;
/// More than any service manager passes.
const COUNT_MAX: RawFd = 1 << 20;

static TAKEN: AtomicBool = AtomicBool::new(false);

/// The descriptors that the service manager passed to this process, with their names, close-on-exec. To be called at
/// the start of a program. Empty when `LISTEN_PID` names another process, and on every later call.
///
/// # Errors
/// `Invalid` when `LISTEN_FDS` is not a number or counts descriptors that are not open.
pub fn listen_fds_with_names() -> Result<Vec<(String, OwnedFd)>> {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let own = variable("LISTEN_PID").parse() == Ok(std::process::id());
    if !own || TAKEN.swap(true, Ordering::SeqCst) {
        return Ok(Vec::new());
    }
    let wrong =
        || Error::invalid("not the number of descriptors that the service manager passed").in_field("LISTEN_FDS");
    let count: RawFd = variable("LISTEN_FDS").parse().map_err(|_| wrong())?;
    if !(0..=COUNT_MAX).contains(&count) {
        return Err(wrong());
    }
    let names = variable("LISTEN_FDNAMES");
    let mut names = names.split(':');
    let mut found = Vec::new();
    for number in FIRST..FIRST + count {
        // SAFETY: the descriptor is only passed to fcntl, which fails for a number that is not open.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        let flags = fcntl_getfd(fd).map_err(|_| wrong())?;
        // Programs that this process starts do not inherit it.
        fcntl_setfd(fd.as_fd(), flags | FdFlags::CLOEXEC).map_err(|_| wrong())?;
        // SAFETY: the guard is `LISTEN_PID`: the service manager opened this number for this process to own. fcntl has
        // just shown that it is open, and `TAKEN` lets only one call come here.
        let owned = unsafe { OwnedFd::from_raw_fd(number) };
        found.push((names.next().unwrap_or_default().to_owned(), owned));
    }
    Ok(found)
}
