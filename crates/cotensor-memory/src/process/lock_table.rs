//! Locks that the kernel releases with the last descriptor of their holder (`F_OFD_SETLK`).

use super::{create_memfd, reopen_to_read};
use cotensor_core::{Error, Result};
use rustix::fs::{SealFlags, fcntl_add_seals};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// An empty memfd whose byte ranges are locks. Any process with a descriptor of it can check them.
///
/// A holder needs no code of its own: it receives a descriptor and keeps it open. Its death, `exec` without that
/// descriptor and a message that never arrives release the lock like a close.
#[derive(Debug)]
pub struct LockTable(OwnedFd);

impl LockTable {
    /// A table without locks.
    ///
    /// # Errors
    /// `OverBudget` when the limit of descriptors is reached; `Io`.
    pub fn create() -> Result<Self> {
        let file = create_memfd("cotensor locks")?;
        // A holder cannot put memory into it.
        let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
        fcntl_add_seals(&file, seals).map_err(|error| Error::io("sealing a lock table", &error.into()))?;
        Ok(Self(file))
    }

    /// A table that another process created.
    pub fn open(file: OwnedFd) -> Self {
        Self(file)
    }

    /// Takes lock `number` for a new descriptor. The lock lasts until all duplicates of that descriptor are closed.
    ///
    /// # Errors
    /// `OverBudget` when the limit of descriptors is reached; `Io` when the system has no such locks.
    pub fn lock(&self, number: u64) -> Result<OwnedFd> {
        // A lock belongs to an open file description, and a duplicate would share the table's own.
        let holder = reopen_to_read(&self.0)?;
        fcntl(holder.as_fd(), libc::F_OFD_SETLK, &mut range(number, libc::F_RDLCK)?)?;
        Ok(holder)
    }

    /// Whether a process has a descriptor that holds lock `number`.
    ///
    /// # Errors
    /// `Io` when the system has no such locks.
    pub fn is_locked(&self, number: u64) -> Result<bool> {
        let mut found = range(number, libc::F_WRLCK)?;
        fcntl(self.0.as_fd(), libc::F_OFD_GETLK, &mut found)?;
        Ok(libc::c_int::from(found.l_type) != libc::F_UNLCK)
    }
}

/// Ends all locks of a holder, also if other processes have duplicates of its descriptor, as forked children do.
///
/// # Errors
/// `Io` when the system has no such locks.
pub fn unlock(holder: impl AsFd) -> Result<()> {
    let mut all = libc::flock { l_len: 0, ..range(0, libc::F_UNLCK)? };
    fcntl(holder.as_fd(), libc::F_OFD_SETLK, &mut all)
}

impl AsFd for LockTable {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The byte of a lock.
fn range(number: u64, kind: libc::c_int) -> Result<libc::flock> {
    let start = libc::off_t::try_from(number).map_err(|_| Error::invalid(format!("lock {number} is too large")))?;
    let (l_type, l_whence) = (kind as libc::c_short, libc::SEEK_SET as libc::c_short);
    // Locks of open file descriptions have no process.
    Ok(libc::flock { l_type, l_whence, l_start: start, l_len: 1, l_pid: 0 })
}

fn fcntl(file: BorrowedFd<'_>, command: libc::c_int, range: &mut libc::flock) -> Result<()> {
    // SAFETY: both commands take a pointer to a `flock`. `range` is borrowed mutably until after the call, the kernel
    // keeps no reference to it, and every value that it writes there is a valid `flock`.
    let outcome = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut *range) };
    match outcome {
        -1 => Err(Error::io("using a lock table", &std::io::Error::last_os_error())),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::duplicate_fd;
    use rustix::fs::{Mode, OFlags, open};
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    #[test]
    fn lock_lasts_as_long_as_a_duplicate_of_its_descriptor() {
        let table = LockTable::create().unwrap();
        let same = LockTable::open(duplicate_fd(&table).unwrap());
        let (one, two) = (table.lock(1).unwrap(), table.lock(u64::from(u32::MAX) << 20).unwrap());
        assert!(same.is_locked(1).unwrap() && same.is_locked(u64::from(u32::MAX) << 20).unwrap());
        assert!(!same.is_locked(0).unwrap() && !same.is_locked(2).unwrap());
        let copy = duplicate_fd(&one).unwrap();
        drop((one, two));
        assert!(table.is_locked(1).unwrap() && !table.is_locked(u64::from(u32::MAX) << 20).unwrap());
        drop(copy);
        assert!(!table.is_locked(1).unwrap());
        let (one, two) = (table.lock(1).unwrap(), table.lock(2).unwrap());
        let _copy = duplicate_fd(&one).unwrap();
        unlock(&one).unwrap();
        assert!(!table.is_locked(1).unwrap() && table.is_locked(2).unwrap());
        drop(two);
        assert!(table.lock(u64::MAX).is_err() && table.is_locked(u64::MAX).is_err());
    }

    #[test]
    fn killed_holder_has_no_lock() {
        let table = LockTable::create().unwrap();
        let holder = table.lock(7).unwrap();
        let inherited = move || rustix::io::fcntl_setfd(&holder, rustix::io::FdFlags::empty()).map_err(Into::into);
        let mut command = Command::new("sleep");
        // SAFETY: the closure makes one system call between `fork` and `exec`.
        unsafe { command.arg("1000").pre_exec(inherited) };
        let mut child = command.spawn().unwrap();
        drop(command);
        assert!(table.is_locked(7).unwrap(), "only the child has the descriptor");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!table.is_locked(7).unwrap());
    }

    #[test]
    fn table_holds_no_memory() {
        let table = LockTable::create().unwrap();
        let holder = table.lock(0).unwrap();
        let again = open(format!("/proc/self/fd/{}", holder.as_raw_fd()), OFlags::RDWR, Mode::empty()).unwrap();
        assert!(rustix::io::write(&again, b"x").is_err());
        assert!(rustix::fs::ftruncate(&again, 4096).is_err());
    }
}
