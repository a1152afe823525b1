//! The limit of this process's address space. An allocation of the heap beyond it ends the process, so requests that need
//! memory are checked before.

use super::procfs::read;
use cotensor_core::{Error, ErrorKind, Result, size};
use rustix::process::{Resource, getrlimit};

/// This much stays free for allocations that no check precedes, such as those of parsers.
const HEADROOM_BYTES: u64 = 64 << 20;

/// A message, its parts as values, and the answer.
const MESSAGE_COPIES: usize = 3;

/// Checks that an allocation of `len` bytes leaves some address space below the limit (RLIMIT_AS). Reads a file only if
/// there is a limit.
///
/// # Errors
/// `OverBudget`, which names the limit.
fn check_address_space(len: usize) -> Result<()> {
    let Some(limit) = getrlimit(Resource::As).current else { return Ok(()) };
    // The first number is the size in pages.
    let statm = read("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split(' ').next().and_then(|pages| pages.parse().ok()).unwrap_or(0);
    check(limit, pages.saturating_mul(rustix::param::page_size() as u64), len as u64)
}

/// Checks that a message of `len` bytes, and what is made of it, leaves some address space below the limit (RLIMIT_AS).
///
/// # Errors
/// `OverBudget`, which names the limit.
pub fn check_room_for_message(len: usize) -> Result<()> {
    check_address_space(len.saturating_mul(MESSAGE_COPIES))
}

/// Whether [`check_room_for_message`] succeeds.
pub fn has_room_for_message(len: usize) -> bool {
    check_room_for_message(len).is_ok()
}

fn check(limit: u64, used: u64, len: u64) -> Result<()> {
    if used.saturating_add(len).saturating_add(HEADROOM_BYTES) <= limit {
        return Ok(());
    }
    let message = format!(
        "{} do not fit: the process has {} of the {} of address space that its limit allows (RLIMIT_AS, `ulimit -v`)",
        size(len),
        size(used),
        size(limit)
    );
    Err(Error::new(ErrorKind::OverBudget, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headroom_stays_free() {
        assert!(check(HEADROOM_BYTES + 300, 100, 200).is_ok());
        let error = check(HEADROOM_BYTES + 300, 100, 201).unwrap_err();
        assert!(error.kind() == ErrorKind::OverBudget && error.message().contains("RLIMIT_AS"), "{error}");
        assert!(check(u64::MAX, u64::MAX, 1).is_ok());
        check_address_space(1 << 20).unwrap();
    }
}
