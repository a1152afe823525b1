//! Creating memfds.

use super::descriptors::fd_error;
use cotensor_core::Result;
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// Creates an empty memfd that can be sealed and that no process can execute (`MFD_NOEXEC_SEAL`). The name is for
/// `/proc`.
///
/// Sandboxes refuse a memfd that could be executed. The kernel adds `F_SEAL_EXEC` to the seals.
/// Linux before 6.3 does not have the flag; such a memfd can be sealed, and has no `F_SEAL_EXEC`.
///
/// # Errors
/// `OverBudget` when the limit of descriptors is reached; `Io`.
pub fn create_memfd(name: &str) -> Result<OwnedFd> {
    with_flags(|flags| memfd_create(name, flags)).map_err(|error| fd_error("cannot create shared memory", error))
}

#[expect(clippy::disallowed_methods, reason = "the one place that creates memfds")]
fn memfd_create(name: &str, flags: MemfdFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::memfd_create(name, flags)
}

/// Calls `create` with `MFD_NOEXEC_SEAL`, and without it where the kernel does not know the flag.
fn with_flags<T>(create: impl Fn(MemfdFlags) -> Result<T, Errno>) -> Result<T, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match create(flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => create(flags),
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{SealFlags, fcntl_add_seals, fcntl_get_seals, fstat};
    use std::cell::RefCell;

    #[test]
    fn memfd_can_be_sealed_and_cannot_be_executed() {
        let fd = create_memfd("test").unwrap();
        let before = fcntl_get_seals(&fd).unwrap();
        assert!(!before.contains(SealFlags::SEAL), "{before:?}");
        // Linux before 6.3 has no such seal.
        if before.contains(SealFlags::EXEC) {
            assert_eq!(fstat(&fd).unwrap().st_mode & 0o111, 0);
        }
        fcntl_add_seals(&fd, SealFlags::WRITE).unwrap();
        assert!(fcntl_get_seals(&fd).unwrap().contains(before | SealFlags::WRITE));
    }

    /// Calls with a kernel that answers `error` to `MFD_NOEXEC_SEAL`. Returns the result and whether each call had it.
    fn calls(error: Errno) -> (Result<(), Errno>, Vec<bool>) {
        let calls: RefCell<Vec<bool>> = RefCell::default();
        let result = with_flags(|flags| {
            let noexec = flags.contains(MemfdFlags::NOEXEC_SEAL);
            calls.borrow_mut().push(noexec);
            assert!(flags.contains(MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC));
            if noexec { Err(error) } else { Ok(()) }
        });
        (result, calls.into_inner())
    }

    #[test]
    fn flag_is_omitted_only_where_the_kernel_does_not_know_it() {
        assert_eq!(calls(Errno::INVAL), (Ok(()), vec![true, false]));
        assert_eq!(calls(Errno::MFILE), (Err(Errno::MFILE), vec![true]));
    }
}
