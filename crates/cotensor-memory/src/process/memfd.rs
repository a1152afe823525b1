//! Creating memfds.

use super::charged_group;
use super::descriptors::fd_error;
use cotensor_core::Result;
use rustix::fs::{MemfdFlags, Mode, OFlags, open};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// The name of memory for tensors, which a colon and a control group follow.
const SEGMENT: &str = "cotensor";
/// The longest name of a memfd in bytes.
const NAME_BYTES_MAX: usize = 249;

/// Creates the memfd of a segment that this process will fill, see [`create_memfd`]. Its name holds the control group of
/// this process, which the kernel charges for the pages: the kernel tells it to root only.
///
/// # Errors
/// As [`create_memfd`].
pub fn create_segment_memfd() -> Result<OwnedFd> {
    create_memfd(&segment_name(charged_group(std::process::id()).and_then(|group| group.to_str().map(str::to_owned))))
}

/// The control group that the kernel charges for the segment behind `fd`: the folder, as the process that filled it saw
/// it. A folder that is too long for the name of a memfd begins with "…". `None` where it is not known.
pub fn segment_group(fd: impl AsFd) -> Option<String> {
    group_in(std::fs::read_link(link(fd.as_fd())).ok()?.to_str()?).map(str::to_owned)
}

fn segment_name(group: Option<String>) -> String {
    let Some(mut group) = group else { return SEGMENT.to_owned() };
    let room = NAME_BYTES_MAX - SEGMENT.len() - ":".len();
    if group.len() > room {
        let start = group.ceil_char_boundary(group.len() - (room - "…".len()));
        group.replace_range(..start, "…");
    }
    format!("{SEGMENT}:{group}")
}

/// The control group in the target of a link in `/proc/self/fd`.
fn group_in(link: &str) -> Option<&str> {
    let name = link.strip_prefix("/memfd:")?.trim_end_matches(" (deleted)");
    name.strip_prefix(SEGMENT)?.strip_prefix(':').filter(|group| !group.is_empty())
}

/// Opens the file behind `fd` once more, for reading only: an open file description of its own, unlike a duplicate's.
///
/// # Errors
/// `OverBudget` when the limit of descriptors is reached; `Io`.
pub(crate) fn reopen_to_read(fd: impl AsFd) -> Result<OwnedFd> {
    open(link(fd.as_fd()), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| fd_error("cannot open shared memory for reading", error))
}

/// The kernel's link to the file behind a descriptor of this process.
fn link(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

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
    fn segment_names_the_group_that_is_charged() {
        let segment = create_segment_memfd().unwrap();
        let group = charged_group(std::process::id());
        assert_eq!(segment_group(&segment), group.map(|group| group.to_str().unwrap().to_owned()));
        for other in
            [create_memfd("other").unwrap(), create_memfd(SEGMENT).unwrap(), create_memfd("cotensor:").unwrap()]
        {
            assert_eq!(segment_group(other), None);
        }
        for group in ["/sys/fs/cgroup/a b".to_owned(), format!("/{}", "x".repeat(239)), format!("/{}", "é".repeat(200))]
        {
            let segment = create_memfd(&segment_name(Some(group.clone()))).unwrap();
            let found = segment_group(segment).unwrap();
            match found.strip_prefix('…') {
                Some(end) => assert!(group.ends_with(end) && group.len() > 240 && end.len() > 230, "{found}"),
                None => assert_eq!(found, group),
            }
        }
    }

    #[test]
    fn flag_is_omitted_only_where_the_kernel_does_not_know_it() {
        assert_eq!(calls(Errno::INVAL), (Ok(()), vec![true, false]));
        assert_eq!(calls(Errno::MFILE), (Err(Errno::MFILE), vec![true]));
    }
}
