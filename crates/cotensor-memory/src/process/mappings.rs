//! The mapped ranges of a process, from `/proc/PID/maps` and `/proc/PID/smaps`.

use super::procfs::{kib_value, read};
use cotensor_core::Result;

/// One mapped range of addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MappedRange {
    /// The first address.
    pub start: u64,
    /// The address after the last one.
    pub end: u64,
    /// Four characters: `r`, `w`, `x` or `-`, then `p` for private or `s` for shared.
    pub permissions: String,
    /// The offset of the first byte in the file, in bytes.
    pub offset: u64,
    /// The device of the file: major number times 2^32 plus minor number.
    pub device: u64,
    /// The inode of the file; 0 for anonymous memory.
    pub inode: u64,
    /// The path of the file or the kernel's name of the range, such as `[heap]`; empty for anonymous memory.
    pub name: String,
}

/// The memory of one mapped range. Sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeUsage {
    /// The range.
    pub range: MappedRange,
    /// Resident pages.
    pub rss_bytes: u64,
    /// Resident pages; a page that n processes map counts 1/n.
    pub pss_bytes: u64,
    /// Dirty pages, shared or private.
    pub dirty_bytes: u64,
    /// Pages without a file, such as those that a private mapping has copied on write.
    pub anonymous_bytes: u64,
    /// Whether a forked child inherits the range.
    pub inherited_on_fork: bool,
}

/// The mapped ranges of a process, in the order of their addresses.
///
/// # Errors
/// `NotFound` when the process does not exist, `Io` when this process may not read its mappings.
pub fn mapped_ranges(pid: u32) -> Result<Vec<MappedRange>> {
    Ok(read(&format!("/proc/{pid}/maps"))?.lines().filter_map(parse_range).collect())
}

/// The mapped ranges of a process with their memory use, in the order of their addresses.
///
/// # Errors
/// As [`mapped_ranges`].
pub fn range_usage(pid: u32) -> Result<Vec<RangeUsage>> {
    Ok(parse_smaps(&read(&format!("/proc/{pid}/smaps"))?))
}

/// One line of `maps`: `start-end permissions offset major:minor inode name`.
fn parse_range(line: &str) -> Option<MappedRange> {
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (addresses, rest) = line.split_once(' ')?;
    let (start, end) = addresses.split_once('-')?;
    let (permissions, rest) = rest.split_once(' ')?;
    let (offset, rest) = rest.split_once(' ')?;
    let (device, rest) = rest.split_once(' ')?;
    let (major, minor) = device.split_once(':')?;
    let (inode, name) = rest.split_once(' ').unwrap_or((rest, ""));
    let range = MappedRange {
        start: hex(start)?,
        end: hex(end)?,
        permissions: permissions.to_owned(),
        offset: hex(offset)?,
        device: hex(major)? << 32 | hex(minor)?,
        inode: inode.parse().ok()?,
        name: name.trim_start().to_owned(),
    };
    (range.start < range.end).then_some(range)
}

/// A line of `maps` for each range, followed by lines `Field: value`.
fn parse_smaps(smaps: &str) -> Vec<RangeUsage> {
    let mut found: Vec<RangeUsage> = Vec::new();
    for line in smaps.lines() {
        let is_field = line.split_whitespace().next().is_some_and(|word| word.ends_with(':'));
        if !is_field {
            found.extend(parse_range(line).map(|range| RangeUsage {
                range,
                inherited_on_fork: true,
                ..RangeUsage::default()
            }));
            continue;
        }
        let Some(usage) = found.last_mut() else { continue };
        let bytes = |name| kib_value(line, name);
        if let Some(bytes) = bytes("Rss:") {
            usage.rss_bytes = bytes;
        } else if let Some(bytes) = bytes("Pss:") {
            usage.pss_bytes = bytes;
        } else if let Some(bytes) = bytes("Anonymous:") {
            usage.anonymous_bytes = bytes;
        } else if let Some(bytes) = bytes("Shared_Dirty:").or_else(|| bytes("Private_Dirty:")) {
            usage.dirty_bytes += bytes;
        } else if let Some(flags) = line.strip_prefix("VmFlags:") {
            // `dc`: do not copy the range on fork (`MADV_DONTFORK`).
            usage.inherited_on_fork = !flags.split_whitespace().any(|flag| flag == "dc");
        }
    }
    found
}

/// The range of this process that starts at `start`.
#[cfg(test)]
pub(crate) fn range_at(start: *const u8) -> Option<RangeUsage> {
    range_usage(std::process::id()).ok()?.into_iter().find(|usage| usage.range.start == start as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_range_reads_all_fields_and_spaces_in_names() {
        let range =
            parse_range("7f00-8f00 r-xp 00001000 fe:01 42                         /usr/lib/a b.so (deleted)").unwrap();
        assert_eq!((range.start, range.end, range.offset), (0x7f00, 0x8f00, 0x1000));
        assert_eq!((range.device, range.inode, &range.name[..]), (0xfe << 32 | 1, 42, "/usr/lib/a b.so (deleted)"));
        assert_eq!(range.permissions, "r-xp");
        assert_eq!(parse_range("1000-2000 rw-p 00000000 00:00 0 ").unwrap().name, "");
        assert_eq!(parse_range("1000-2000 rw-p 00000000 00:00 0 [heap]").unwrap().name, "[heap]");
        for malformed in ["2000-1000 rw-p 00000000 00:00 0 ", "nonsense", ""] {
            assert_eq!(parse_range(malformed), None, "{malformed}");
        }
    }

    #[test]
    fn parse_smaps_assigns_fields_to_the_range_before_them() {
        let found = parse_smaps(
            "7f00-7f10 r--p 00000000 fe:00 42   /cache/packs/a b.pack\nSize: 64 kB\nRss: 16 kB\nPss: 12 kB\nPss_Dirty: 9 kB\n\
             Shared_Dirty: 1 kB\nPrivate_Dirty: 2 kB\nAnonymous: 4 kB\nVmFlags: rd mr mw me dc\n\
             7f10-7f20 rw-p 00000000 00:00 0 \nPss: 100 kB\nVmFlags: rd wr\n",
        );
        assert_eq!(found.len(), 2);
        let first = &found[0];
        assert_eq!((first.rss_bytes, first.pss_bytes, first.dirty_bytes), (16 << 10, 12 << 10, 3 << 10));
        assert_eq!((first.anonymous_bytes, first.inherited_on_fork), (4 << 10, false));
        assert_eq!((found[1].pss_bytes, found[1].inherited_on_fork), (100 << 10, true));
    }

    #[test]
    fn ranges_of_this_process_are_found() {
        let pid = std::process::id();
        assert!(mapped_ranges(pid).unwrap().iter().any(|range| range.name == "[stack]"));
        assert!(range_usage(pid).unwrap().iter().any(|usage| usage.pss_bytes > 0));
        assert!(mapped_ranges(u32::MAX).is_err());
    }
}
