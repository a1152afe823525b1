//! The processes of a daemon, found by the lock of its socket.

use crate::state_folder::path_beside;
use cotensor_core::waiting::WaitReport;
use cotensor_memory::process::wait_report;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The lock beside a daemon's socket, by which its processes are recognized.
pub struct DaemonLock {
    device: u64,
    inode: u64,
}

impl DaemonLock {
    /// The path of the lock of a daemon at `socket`.
    pub fn path(socket: &Path) -> PathBuf {
        path_beside(socket, ".lock")
    }

    /// The lock of the daemon at `socket`; none if no daemon was there.
    pub fn of(socket: &Path) -> Option<Self> {
        let lock = std::fs::symlink_metadata(Self::path(socket)).ok()?;
        Some(Self { device: lock.dev(), inode: lock.ino() })
    }

    /// Whether a process has the lock's file open.
    pub fn is_open_in(&self, pid: u32) -> bool {
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut files = descriptors.filter_map(|fd| std::fs::metadata(fd.path()).ok());
        files.any(|file| (file.dev(), file.ino()) == (self.device, self.inode))
    }

    /// The processes that have the lock's file open: a server and its supervisor, or a program that has a daemon within it.
    /// Processes of other users, and of containers whose numbers mean nothing here, are not found.
    pub fn processes(&self) -> impl Iterator<Item = u32> + '_ {
        let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|&pid| self.is_open_in(pid))
    }
}

/// A report of a wait for the daemon at `socket`; `what` is the awaited event, such as "to answer tensor.get".
pub(crate) fn daemon_report(socket: &Path, what: &str) -> WaitReport {
    let lock = DaemonLock::of(socket);
    let pids: Vec<u32> = lock.iter().flat_map(DaemonLock::processes).collect();
    let what = format!(", the daemon at {}, {what}", socket.display());
    let mut report = wait_report(&pids, "a process", &what, true);
    if !report.is_expected {
        report.text.push_str("; `cotensor stop` ends the daemon");
    }
    report
}
