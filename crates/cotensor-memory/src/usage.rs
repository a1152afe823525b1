//! What processes use, read from /proc.

use cotensor_core::{Error, Result};

/// The proportional set size of a process in bytes: pages that n processes map count one n-th for each.
///
/// # Errors
/// `NotFound` when the process is gone, `Io` when it may not be looked at.
pub fn process_pss_bytes(pid: u32) -> Result<u64> {
    field(&format!("/proc/{pid}/smaps_rollup"), "Pss:")
}

/// The most resident memory that a process ever had, in bytes.
///
/// # Errors
/// As [`process_pss_bytes`].
pub fn process_peak_rss_bytes(pid: u32) -> Result<u64> {
    field(&format!("/proc/{pid}/status"), "VmHWM:")
}

/// How many mappings this process has.
///
/// # Errors
/// `Io` without /proc.
pub fn mapping_count() -> Result<usize> {
    Ok(read("/proc/self/maps")?.lines().count())
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
        let pss = process_pss_bytes(pid).unwrap();
        assert!(pss > 100 << 10 && pss <= process_peak_rss_bytes(pid).unwrap());
        assert!(mapping_count().unwrap() > 5 && fd_count().unwrap() >= 2);
        assert!(process_pss_bytes(u32::MAX).is_err());
    }
}
