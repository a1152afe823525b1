//! Running processes and what they have mapped, from /proc.

use cotensor_core::{Error, Result};
use cotensor_memory::process::{self, MappedRange};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// The most bytes of a command line that are kept.
const COMMAND_BYTES_MAX: usize = 200;

/// A process that can be looked at.
#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) pid: u32,
    /// Its command line, shortened.
    pub(super) command: String,
    /// Resident bytes when it was listed.
    pub(super) resident_bytes: u64,
}

impl Process {
    fn open(pid: u32) -> Option<Self> {
        let path = format!("/proc/{pid}");
        let line = std::fs::read(format!("{path}/cmdline")).ok()?;
        let line = &line[..line.len().min(COMMAND_BYTES_MAX)];
        let command = String::from_utf8_lossy(line).trim_end_matches('\0').replace('\0', " ");
        if command.is_empty() {
            // The kernel's own threads have none, and no memory either.
            return None;
        }
        Some(Self { pid, command, resident_bytes: process::rss_bytes(pid).ok()? })
    }

    pub(super) fn path(&self, file: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{file}", self.pid))
    }

    /// What it has mapped and may read, memory only: no devices and nothing that the kernel makes up.
    ///
    /// # Errors
    /// `NotFound` when it has ended, `Io` when it may not be looked at.
    pub(super) fn ranges(&self) -> Result<Vec<MappedRange>> {
        Ok(process::mapped_ranges(self.pid)?.into_iter().filter(is_memory).collect())
    }
}

fn is_memory(range: &MappedRange) -> bool {
    let name = &range.name;
    let memory = !name.starts_with("/dev/") || name.starts_with("/dev/zero") || name.starts_with("/dev/shm/");
    let made_up = ["[v", "anon_inode:"].iter().any(|prefix| name.starts_with(prefix));
    range.permissions.starts_with('r') && memory && !made_up
}

/// The name of a range in a report.
pub(super) fn name(range: &MappedRange) -> &str {
    if range.name.is_empty() { "[anonymous]" } else { &range.name }
}

/// What there is to look at.
pub(super) struct Listing {
    pub(super) processes: Vec<Process>,
    /// Processes of other users, which were left alone.
    pub(super) others: usize,
}

/// The processes of this user but this one; or those named by `pids`, whoever's they are.
///
/// # Errors
/// `NotFound` for a pid that there is not, `Io` without /proc.
pub(super) fn list(pids: &[u32]) -> Result<Listing> {
    let mut listing = Listing { processes: Vec::new(), others: 0 };
    if !pids.is_empty() {
        for &pid in pids {
            let gone = || Error::not_found(format!("no process {pid} with memory of its own")).in_field("pid");
            listing.processes.push(Process::open(pid).ok_or_else(gone)?);
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
    fn devices_and_kernel_ranges_are_left_out() {
        let range = |permissions: &str, name: &str| MappedRange {
            permissions: permissions.to_owned(),
            name: name.to_owned(),
            ..MappedRange::default()
        };
        for kept in ["/usr/lib/a b.so (deleted)", "", "[heap]", "/memfd:cotensor (deleted)", "/dev/shm/x"] {
            assert!(is_memory(&range("rw-p", kept)), "{kept}");
        }
        for left_out in ["[vvar]", "/dev/nvidia0", "anon_inode:[io_uring]"] {
            assert!(!is_memory(&range("rw-p", left_out)), "{left_out}");
        }
        assert!(!is_memory(&range("---p", "")));
        assert_eq!(name(&range("rw-p", "")), "[anonymous]");
    }

    #[test]
    fn this_process_is_found_by_its_number_only() {
        let me = std::process::id();
        assert!(list(&[]).unwrap().processes.iter().all(|process| process.pid != me));
        let found = &list(&[me]).unwrap().processes[0];
        assert!(found.resident_bytes > 0 && found.ranges().unwrap().len() > 5);
        assert_eq!(list(&[u32::MAX]).err().unwrap().field(), Some("pid"));
    }
}
