//! How much of a folder's files this process has in memory through its mappings.

use cotensor::core::{Error, Result};
use std::path::Path;

/// Proportional bytes of this process's mappings of files below `folder` that are in memory.
///
/// # Errors
/// `Io` without /proc, or for a folder that is not there.
pub(crate) fn resident_bytes(folder: &Path) -> Result<u64> {
    const FILE: &str = "/proc/self/smaps";
    let folder =
        folder.canonicalize().map_err(|error| Error::io("cannot open the cache folder", &error).in_file(folder))?;
    let text = std::fs::read_to_string(FILE).map_err(|error| Error::io("cannot read", &error).in_file(FILE))?;
    Ok(sum_below(&text, &folder))
}

/// Sums the `Pss` lines of the mappings whose file is below `folder`.
fn sum_below(smaps: &str, folder: &Path) -> u64 {
    let mut below = false;
    let mut kib = 0;
    for line in smaps.lines() {
        if let Some(size) = line.strip_prefix("Pss:") {
            let size = size.trim().trim_end_matches("kB").trim_end().parse::<u64>().unwrap_or(0);
            kib += if below { size } else { 0 };
        } else if line.split_whitespace().next().is_some_and(|first| first.contains('-')) {
            // A mapping begins: addresses, permissions, offset, device, inode, path.
            below = line.find('/').is_some_and(|at| Path::new(&line[at..]).starts_with(folder));
        }
    }
    kib << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mappings_below_the_folder_count() {
        let smaps = "7f00-7f10 r--p 00000000 fe:00 42   /cache/packs/a b.pack\nSize: 64 kB\nPss: 12 kB\nPss_Dirty: 9 kB\n\
                     7f10-7f20 rw-p 00000000 00:00 0 \nPss: 100 kB\n\
                     7f20-7f30 r--p 00000000 fe:00 43   /cachet/c\nPss: 7 kB\n\
                     7f30-7f40 r--p 00000000 fe:00 44   /cache/d\nPss: 3 kB\n";
        assert_eq!(sum_below(smaps, Path::new("/cache")), 15 << 10);
        assert_eq!(sum_below("", Path::new("/cache")), 0);
    }

    #[test]
    fn reads_this_process() {
        assert!(resident_bytes(std::env::current_exe().unwrap().parent().unwrap()).unwrap() > 0);
        assert!(resident_bytes(Path::new("/no/such/folder")).is_err());
    }
}
