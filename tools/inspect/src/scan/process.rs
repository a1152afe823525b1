//! Running processes and their mappings, from /proc.

use cotensor_core::{Error, Result};
use cotensor_memory::process::{self, MappedRange};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Maximum length of a command line; the rest is cut off.
const COMMAND_BYTES_MAX: usize = 200;

/// A running process.
#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) pid: u32,
    /// Its command line, shortened.
    pub(super) command: String,
    /// Resident bytes when the process was listed.
    pub(super) resident_bytes: u64,
}

impl Process {
    fn open(pid: u32) -> Option<Self> {
        // Kernel threads have no command line and no memory.
        Some(Self { pid, command: command(pid)?, resident_bytes: process::rss_bytes(pid).ok()? })
    }

    pub(super) fn path(&self, file: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{file}", self.pid))
    }

    /// The readable mappings of memory; excludes devices and mappings that the kernel provides.
    ///
    /// # Errors
    /// `NotFound` when the process has ended, `Io` without permission.
    pub(super) fn ranges(&self) -> Result<Vec<MappedRange>> {
        Ok(process::mapped_ranges(self.pid)?.into_iter().filter(is_memory).collect())
    }
}

/// The command line of a process, shortened. None without one.
pub(super) fn command(pid: u32) -> Option<String> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let line = &line[..line.len().min(COMMAND_BYTES_MAX)];
    let command = String::from_utf8_lossy(line).trim_end_matches('\0').replace('\0', " ");
    (!command.is_empty()).then_some(command)
}

/// Whether the mapping is readable memory.
fn is_memory(range: &MappedRange) -> bool {
    let name = &range.name;
    let memory = !name.starts_with("/dev/") || name.starts_with("/dev/zero") || name.starts_with("/dev/shm/");
    let kernel_provided = ["[v", "anon_inode:"].iter().any(|prefix| name.starts_with(prefix));
    range.permissions.starts_with('r') && memory && !kernel_provided
}

/// The name of a mapping in a report.
pub(super) fn name(range: &MappedRange) -> &str {
    if range.name.is_empty() { "[anonymous]" } else { &range.name }
}

/// The processes to scan.
pub(super) struct Listing {
    pub(super) processes: Vec<Process>,
    /// Number of processes of other users, which are skipped.
    pub(super) others: usize,
}

/// Lists the processes `pids` of any user; if empty, all processes of this user except this one.
///
/// # Errors
/// `NotFound` for a missing process, `Io` without /proc.
pub(super) fn list(pids: &[u32]) -> Result<Listing> {
    let mut listing = Listing { processes: Vec::new(), others: 0 };
    if !pids.is_empty() {
        for &pid in pids {
            let missing = || Error::not_found(format!("process {pid} not found, or a kernel thread")).in_field("pid");
            listing.processes.push(Process::open(pid).ok_or_else(missing)?);
        }
        return Ok(listing);
    }
    let (me, user) = (std::process::id(), rustix::process::geteuid().as_raw());
    let entries = std::fs::read_dir("/proc").map_err(|error| Error::io("cannot list", &error).in_file("/proc"))?;
    for entry in entries.flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()).filter(|&pid| pid != me);
        let (Some(pid), Ok(found)) = (pid, entry.metadata()) else { continue };
        if found.uid() == user {
            listing.processes.extend(Process::open(pid));
        } else {
            listing.others += 1;
        }
    }
    listing.processes.sort_by_key(|process| process.pid);
    Ok(listing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_and_kernel_mappings_are_skipped() {
        let range = |permissions: &str, name: &str| MappedRange {
            permissions: permissions.to_owned(),
            name: name.to_owned(),
            ..MappedRange::default()
        };
        for kept in ["/usr/lib/a b.so (deleted)", "", "[heap]", "/memfd:cotensor (deleted)", "/dev/shm/x"] {
            assert!(is_memory(&range("rw-p", kept)), "{kept}");
        }
        for skipped in ["[vvar]", "/dev/nvidia0", "anon_inode:[io_uring]"] {
            assert!(!is_memory(&range("rw-p", skipped)), "{skipped}");
        }
        assert!(!is_memory(&range("---p", "")));
        assert_eq!(name(&range("rw-p", "")), "[anonymous]");
    }

    #[test]
    fn own_process_is_listed_only_by_pid() {
        let me = std::process::id();
        assert!(list(&[]).unwrap().processes.iter().all(|process| process.pid != me));
        let found = &list(&[me]).unwrap().processes[0];
        assert!(found.resident_bytes > 0 && found.ranges().unwrap().len() > 5);
        assert_eq!(list(&[u32::MAX]).err().unwrap().field(), Some("pid"));
    }
}
