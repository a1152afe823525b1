//! What processes use, read from /proc.

use cotensor_core::{Error, Result};

/// The proportional set size of a process in bytes: pages that n processes map count one n-th for each.
///
/// # Errors
/// `NotFound` when the process is gone, `Io` when it may not be looked at.
pub fn pss_bytes(pid: u32) -> Result<u64> {
    field(&format!("/proc/{pid}/smaps_rollup"), "Pss:")
}

/// The most resident memory that a process ever had, in bytes.
///
/// # Errors
/// As [`pss_bytes`].
pub fn peak_rss_bytes(pid: u32) -> Result<u64> {
    field(&format!("/proc/{pid}/status"), "VmHWM:")
}

/// Bytes that the system can still give without swapping, where it says.
pub fn available_bytes() -> Option<u64> {
    of_system(&read("/proc/meminfo").ok()?, "MemAvailable:")
}

/// Bytes that the system can still give, by swapping too, where it says.
pub fn available_with_swap_bytes() -> Option<u64> {
    let text = read("/proc/meminfo").ok()?;
    Some(of_system(&text, "MemAvailable:")?.saturating_add(of_system(&text, "SwapFree:").unwrap_or(0)))
}

fn of_system(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The tightest memory limit of this process's control groups, and what is used of it, the page cache included; in bytes.
pub fn cgroup_memory_limit() -> Option<(u64, u64)> {
    let groups = read("/proc/self/cgroup").ok()?;
    let mut tightest: Option<(u64, u64)> = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let (root, limit, used) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max", "memory.current"),
            other if other.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
            }
            _ => continue,
        };
        // A parent's limit holds for all below it. Inside a container the path may not exist, its root does.
        for folder in std::path::Path::new(path).ancestors() {
            let at = |file: &str| format!("{root}{}/{file}", folder.to_string_lossy().trim_end_matches('/'));
            let number = |file: &str| read(&at(file)).ok()?.trim().parse::<u64>().ok();
            // Version 1 writes a number near 2^63 for none.
            if let Some(max) = number(limit).filter(|&max| max < 1 << 60)
                && tightest.is_none_or(|(before, _)| max < before)
            {
                tightest = Some((max, number(used).unwrap_or(0)));
            }
        }
    }
    tightest
}

/// How many mappings this process has.
///
/// # Errors
/// `Io` without /proc.
pub fn mapping_count() -> Result<usize> {
    Ok(read("/proc/self/maps")?.lines().count())
}

/// What the kernel says about one mapping of this process.
#[cfg(test)]
#[derive(Debug, Default)]
pub(crate) struct Mapping {
    pub(crate) protection: String,
    pub(crate) inode: u64,
    pub(crate) resident_bytes: u64,
    pub(crate) dirty_bytes: u64,
    pub(crate) anonymous_bytes: u64,
    /// Whether forked children have it.
    pub(crate) inherited: bool,
}

/// The mapping that starts at `start`.
#[cfg(test)]
pub(crate) fn mapping_at(start: *const u8) -> Option<Mapping> {
    let smaps = read("/proc/self/smaps").ok()?;
    let mut lines = smaps.lines();
    let first = lines.find(|line| {
        let range = line.split_once('-').and_then(|(from, _)| u64::from_str_radix(from, 16).ok());
        range == Some(start as u64)
    })?;
    let columns: Vec<&str> = first.split_whitespace().collect();
    let mut mapping =
        Mapping { protection: columns[1].to_owned(), inode: columns[4].parse().ok()?, ..Mapping::default() };
    for line in lines {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            mapping.inherited = !flags.split_whitespace().any(|flag| flag == "dc");
            break;
        }
        let kib = || line.split_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok()).unwrap_or(0);
        match line.split(':').next() {
            Some("Rss") => mapping.resident_bytes = kib() << 10,
            Some("Anonymous") => mapping.anonymous_bytes = kib() << 10,
            Some("Shared_Dirty" | "Private_Dirty") => mapping.dirty_bytes += kib() << 10,
            _ => {}
        }
    }
    Some(mapping)
}

/// How many file descriptors this process has open.
///
/// # Errors
/// `Io` without /proc.
pub fn fd_count() -> Result<usize> {
    let entries = std::fs::read_dir("/proc/self/fd")
        .map_err(|error| Error::io("cannot list", &error).in_file("/proc/self/fd"))?;
    // The listing itself is one.
    Ok(entries.count().saturating_sub(1))
}

/// A line `NAME   123 kB` of a /proc file, in bytes.
fn field(path: &str, name: &str) -> Result<u64> {
    let text = read(path)?;
    let kib =
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| Error::not_found("the field is missing").in_file(path).in_field(name))
}

fn read(path: &str) -> Result<String> {
    std::fs::read_to_string(path).map_err(|error| Error::io("cannot read", &error).in_file(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_this_process() {
        let pid = std::process::id();
        let pss = pss_bytes(pid).unwrap();
        assert!(pss > 100 << 10 && pss <= peak_rss_bytes(pid).unwrap());
        assert!(mapping_count().unwrap() > 5 && fd_count().unwrap() >= 2);
        assert!(pss_bytes(u32::MAX).is_err());
    }
}
