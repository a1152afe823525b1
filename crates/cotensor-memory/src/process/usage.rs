//! The memory, descriptors and mappings of a process.

use super::procfs::{kib_field, read};
use cotensor_core::{Error, Result};
use rustix::param::page_size;

/// The proportional set size (PSS) of a process in bytes: a page that n processes map counts 1/n in each.
///
/// # Errors
/// `NotFound` when the process does not exist, `Io` when this process may not read its memory use.
pub fn pss_bytes(pid: u32) -> Result<u64> {
    field(&format!("/proc/{pid}/smaps_rollup"), "Pss:")
}

/// The resident set size (RSS) of a process in bytes.
///
/// # Errors
/// As [`pss_bytes`].
pub fn rss_bytes(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/statm");
    let text = read(&path)?;
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    let pages = pages.ok_or_else(|| Error::not_found("the field is missing").in_file(path).in_field("resident"))?;
    Ok(pages * page_size() as u64)
}

/// The resident anonymous memory of a process in bytes: no files and no shared memory.
///
/// # Errors
/// As [`pss_bytes`].
pub fn anonymous_rss_bytes(pid: u32) -> Result<u64> {
    field(&format!("/proc/{pid}/status"), "RssAnon:")
}

/// The number of mappings of a process.
///
/// # Errors
/// As [`pss_bytes`].
pub fn mapping_count(pid: u32) -> Result<usize> {
    Ok(read(&format!("/proc/{pid}/maps"))?.lines().count())
}

/// The number of open file descriptors of a process.
///
/// # Errors
/// As [`pss_bytes`].
pub fn fd_count(pid: u32) -> Result<usize> {
    let path = format!("/proc/{pid}/fd");
    let entries = std::fs::read_dir(&path).map_err(|error| Error::io("cannot list", &error).in_file(&path))?;
    // In this process the listing has a descriptor of its own.
    Ok(entries.count() - usize::from(pid == std::process::id()))
}

fn field(path: &str, name: &str) -> Result<u64> {
    let value = kib_field(&read(path)?, name);
    value.ok_or_else(|| Error::not_found("the field is missing").in_file(path).in_field(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_of_this_process_is_plausible() {
        let pid = std::process::id();
        assert!(pss_bytes(pid).unwrap() > 100 << 10 && rss_bytes(pid).unwrap() > 100 << 10);
        assert!(anonymous_rss_bytes(pid).unwrap() > 0);
        assert!(mapping_count(pid).unwrap() > 5 && fd_count(pid).unwrap() >= 2);
    }

    #[test]
    fn usage_of_an_unknown_process_is_an_error() {
        assert!(pss_bytes(u32::MAX).is_err() && rss_bytes(u32::MAX).is_err() && fd_count(u32::MAX).is_err());
    }
}
