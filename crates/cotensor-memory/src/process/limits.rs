//! The memory that is left for this process.

use super::procfs::{kib_field, read};
use std::path::Path;

/// No limit, as control groups of version 1 write it: a number near 2^63.
const NO_LIMIT_BYTES: u64 = 1 << 60;

/// `MemAvailable` of `/proc/meminfo` in bytes: memory that the system can provide without swapping.
pub fn available_bytes() -> Option<u64> {
    kib_field(&read("/proc/meminfo").ok()?, "MemAvailable:")
}

/// `MemAvailable` plus `SwapFree` of `/proc/meminfo` in bytes.
pub(crate) fn available_with_swap_bytes() -> Option<u64> {
    let meminfo = read("/proc/meminfo").ok()?;
    Some(kib_field(&meminfo, "MemAvailable:")?.saturating_add(kib_field(&meminfo, "SwapFree:").unwrap_or(0)))
}

/// The lowest memory limit among this process's control groups, and the use that counts against it, page cache
/// included. Both in bytes; `None` without a limit.
pub fn cgroup_memory_limit() -> Option<(u64, u64)> {
    let groups = read("/proc/self/cgroup").ok()?;
    let mut lowest: Option<(u64, u64)> = None;
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
        // A parent's limit also binds its children. In a container the path may not exist, but its root does.
        for folder in Path::new(path).ancestors() {
            let folder = folder.to_string_lossy();
            let number = |file: &str| {
                read(&format!("{root}{}/{file}", folder.trim_end_matches('/'))).ok()?.trim().parse::<u64>().ok()
            };
            if let Some(limit) = number(limit).filter(|&limit| limit < NO_LIMIT_BYTES)
                && lowest.is_none_or(|(lowest, _)| limit < lowest)
            {
                lowest = Some((limit, number(used).unwrap_or(0)));
            }
        }
    }
    lowest
}
