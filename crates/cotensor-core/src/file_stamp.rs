use std::fmt;
use std::time::{Duration, SystemTime};

/// A file that was written less than this ago may be written again without its times changing.
const SETTLED_AFTER: Duration = Duration::from_secs(2);

/// The identity of a file and of its last change. A file that is written, replaced or renamed gets another one; a program
/// can set the time of the last write back, but not the time of the last change.
///
/// Its text has the five parts in order, for records of what was verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStamp {
    /// The device of the file system.
    pub device: u64,
    /// The number of the file on it.
    pub inode: u64,
    /// The length in bytes.
    pub size: u64,
    /// The last write of the bytes: seconds and nanoseconds since 1970.
    pub modified: (i64, i64),
    /// The last change of the bytes, the name, the owner or the mode.
    pub changed: (i64, i64),
}

impl FileStamp {
    /// The stamp of a file with this metadata.
    #[cfg(unix)]
    pub fn of(file: &std::fs::Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;
        Self {
            device: file.dev(),
            inode: file.ino(),
            size: file.len(),
            modified: (file.mtime(), file.mtime_nsec()),
            changed: (file.ctime(), file.ctime_nsec()),
        }
    }

    /// Whether the file is old enough that a further write would change its times.
    pub fn settled(&self, now: SystemTime) -> bool {
        let newest = self.modified.max(self.changed);
        let Ok(seconds) = u64::try_from(newest.0) else { return true };
        let written = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_nanos(newest.1 as u64);
        // A time in the future cannot be trusted.
        now.duration_since(written).is_ok_and(|age| age >= SETTLED_AFTER)
    }
}

impl fmt::Display for FileStamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, inode, size, modified, changed } = self;
        write!(f, "{device} {inode} {size} {}.{:09} {}.{:09}", modified.0, modified.1, changed.0, changed.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamp_of_a_future_or_recent_change_is_not_settled() {
        let at = |modified, changed| FileStamp { device: 1, inode: 2, size: 3, modified, changed };
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        assert!(at((990, 0), (998, 0)).settled(now) && at((-5, 0), (-5, 0)).settled(now));
        assert!(!at((990, 0), (998, 1)).settled(now) && !at((999, 0), (990, 0)).settled(now));
        assert!(!at((2000, 0), (2000, 0)).settled(now));
        assert_eq!(at((4, 5), (6, 7)).to_string(), "1 2 3 4.000000005 6.000000007");
    }
}
