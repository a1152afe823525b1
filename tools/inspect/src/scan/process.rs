//! Running processes and what they have mapped, from /proc.

use cotensor_core::{Error, Result};
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

/// A part of a process's address space that can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) start: u64,
    pub(super) end: u64,
    /// Where in the file it starts, in bytes.
    pub(super) offset: u64,
    /// Device and inode of the file; the file `0:0 0` is none.
    pub(super) file: (u64, u64),
    /// The file's path, or what the kernel calls the range.
    pub(super) name: String,
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
        let pages = std::fs::read_to_string(format!("{path}/statm")).ok()?;
        let resident = pages.split(' ').nth(1)?.parse::<u64>().ok()?;
        Some(Self { pid, command, resident_bytes: resident * super::PAGE_BYTES as u64 })
    }

    pub(super) fn path(&self, file: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{file}", self.pid))
    }

    /// What it has mapped and may read, memory only: no devices and nothing that the kernel makes up.
    ///
    /// # Errors
    /// `NotFound` when it has ended, `Io` when it may not be looked at.
    pub(super) fn ranges(&self) -> Result<Vec<Range>> {
        let path = self.path("maps");
        let text = std::fs::read(&path).map_err(|error| Error::io("cannot read", &error).in_file(&path))?;
        Ok(String::from_utf8_lossy(&text).lines().filter_map(parse).collect())
    }
}

/// One line of maps: `start-end perms offset major:minor inode path`.
fn parse(line: &str) -> Option<Range> {
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let (permissions, rest) = rest.split_once(' ')?;
    let (offset, rest) = rest.split_once(' ')?;
    let (device, rest) = rest.split_once(' ')?;
    let (major, minor) = device.split_once(':')?;
    let (inode, name) = rest.split_once(' ').unwrap_or((rest, ""));
    let name = name.trim_start();
    let memory = !name.starts_with("/dev/") || name.starts_with("/dev/zero") || name.starts_with("/dev/shm/");
    let made_up = ["[v", "anon_inode:"].iter().any(|prefix| name.starts_with(prefix));
    if !permissions.starts_with('r') || !memory || made_up {
        return None;
    }
    let range = Range {
        start: hex(start)?,
        end: hex(end)?,
        offset: hex(offset)?,
        file: (hex(major)? << 32 | hex(minor)?, inode.parse().ok()?),
        name: if name.is_empty() { "[anonymous]".to_owned() } else { name.to_owned() },
    };
    (range.start < range.end).then_some(range)
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
    fn lines_of_maps_are_read() {
        let line = "7f00-8f00 r-xp 00001000 fe:01 42                         /usr/lib/a b.so (deleted)";
        let range = parse(line).unwrap();
        assert_eq!((range.start, range.end, range.offset), (0x7f00, 0x8f00, 0x1000));
        assert_eq!((range.file, &range.name[..]), ((0xfe << 32 | 1, 42), "/usr/lib/a b.so (deleted)"));
        assert_eq!(parse("1000-2000 rw-p 00000000 00:00 0 ").unwrap().name, "[anonymous]");
        assert_eq!(parse("1000-2000 rw-p 00000000 00:00 0 [heap]").unwrap().name, "[heap]");
        assert!(parse("1000-2000 rw-s 00000000 00:01 7 /memfd:cotensor (deleted)").is_some());
        for left_out in [
            "1000-2000 ---p 00000000 00:00 0 ",
            "1000-2000 r--p 00000000 00:00 0 [vvar]",
            "1000-2000 rw-s 00000000 00:06 7 /dev/nvidia0",
            "1000-2000 rw-s 00000000 00:06 7 anon_inode:[io_uring]",
            "2000-1000 rw-p 00000000 00:00 0 ",
            "nonsense",
            "",
        ] {
            assert_eq!(parse(left_out), None, "{left_out}");
        }
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
