//! Which files of the cache were verified, so that each is hashed once after each boot.

use super::files::replace;
use cotensor_core::{ContentHash, FileStamp};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The most bytes of a record: a boot and a stamp.
const RECORD_BYTES_MAX: u64 = 512;

/// Records of verified files, in a folder of this program: other programs own the hub's cache, and it may be read-only. A
/// record is valid for one stamp of the file and one boot.
#[derive(Clone, Debug)]
pub(crate) struct VerifiedFiles {
    /// Without a folder, each process verifies.
    folder: Option<PathBuf>,
    /// The kernel's identifier of this boot. Without it, each process verifies.
    boot: Option<String>,
    /// Whether earlier records count.
    trusts_records: bool,
}

impl VerifiedFiles {
    pub(crate) fn new(folder: Option<PathBuf>, trusts_records: bool) -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
        Self { folder, boot: boot.map(|boot| boot.trim().to_owned()), trusts_records }
    }

    /// Whether the file with this path and stamp was verified with `hash`.
    pub(super) fn contains(&self, path: &Path, stamp: &FileStamp, hash: &str) -> bool {
        let Some((at, record)) = self.trusts_records.then(|| self.record(path, stamp, hash)).flatten() else {
            return false;
        };
        let small = std::fs::symlink_metadata(&at).is_ok_and(|at| at.is_file() && at.len() <= RECORD_BYTES_MAX);
        small && std::fs::read(&at).is_ok_and(|found| found == record.as_bytes())
    }

    /// Records a verified file. A file that was just written is recorded later: it could change with the same stamp.
    pub(super) fn insert(&self, path: &Path, stamp: &FileStamp, hash: &str) {
        if stamp.settled(SystemTime::now()) {
            self.insert_written(path, stamp, hash);
        }
    }

    /// As [`insert`](Self::insert), for a file that this process wrote.
    pub(super) fn insert_written(&self, path: &Path, stamp: &FileStamp, hash: &str) {
        let (Some((at, record)), Some(folder)) = (self.record(path, stamp, hash), &self.folder) else { return };
        let created = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
        // Without the record the next process verifies again.
        let _ = created.and_then(|()| replace(&at, record.as_bytes()));
    }

    /// The path of a file's record, and its text.
    fn record(&self, path: &Path, stamp: &FileStamp, hash: &str) -> Option<(PathBuf, String)> {
        let name = ContentHash::of(path.as_os_str().as_encoded_bytes()).to_string();
        Some((self.folder.as_ref()?.join(name), format!("{} {hash} {stamp}", self.boot.as_ref()?)))
    }
}
