//! Resident bytes of the files that this process maps from a folder.

use cotensor::core::{Error, Result};
use cotensor::memory::process::{RangeUsage, range_usage};
use std::path::Path;

/// The proportional set size, in bytes, of this process's mappings of files below `folder`.
///
/// # Errors
/// `NotFound` for a folder that does not exist, `Io` without `/proc`.
pub(crate) fn resident_bytes(folder: &Path) -> Result<u64> {
    let folder =
        folder.canonicalize().map_err(|error| Error::io("cannot open the cache folder", &error).in_file(folder))?;
    Ok(sum_below(&range_usage(std::process::id())?, &folder))
}

fn sum_below(ranges: &[RangeUsage], folder: &Path) -> u64 {
    let below = ranges.iter().filter(|usage| Path::new(&usage.range.name).starts_with(folder));
    below.map(|usage| usage.pss_bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor::memory::process::MappedRange;

    #[test]
    fn only_mappings_below_the_folder_are_counted() {
        let mapped = |name: &str, pss_bytes| RangeUsage {
            range: MappedRange { name: name.to_owned(), ..MappedRange::default() },
            pss_bytes,
            ..RangeUsage::default()
        };
        let ranges =
            [mapped("/cache/packs/a b.pack", 12), mapped("", 100), mapped("/cachet/c", 7), mapped("/cache/d", 3)];
        assert_eq!(sum_below(&ranges, Path::new("/cache")), 15);
        assert_eq!(sum_below(&[], Path::new("/cache")), 0);
    }

    #[test]
    fn own_executable_is_resident() {
        assert!(resident_bytes(std::env::current_exe().unwrap().parent().unwrap()).unwrap() > 0);
        assert!(resident_bytes(Path::new("/no/such/folder")).is_err());
    }
}
