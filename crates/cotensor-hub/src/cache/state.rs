//! Whether a file of the cache has the bytes of the list of files.

use super::digest::Digest;
use super::tree::RepoFile;
use super::verified::VerifiedFiles;
use cotensor_core::FileStamp;
use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;

/// A file, compared with the list of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileState {
    /// There is no such file.
    Missing,
    /// It has other bytes, or is not a file.
    Damaged,
    /// It has the right bytes, or their hash is not known.
    Whole,
}

impl FileState {
    /// Compares the file at `path`, a link included, with `file`. It is hashed unless it was verified before; `hashed` is
    /// called with the number of hashed bytes.
    pub(crate) fn of(path: &Path, file: &RepoFile, verified: &VerifiedFiles, hashed: &dyn Fn(u64)) -> Self {
        let found = match std::fs::metadata(path) {
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::NotFound => return Self::Missing,
            Err(_) => return Self::Damaged,
        };
        if !found.is_file() || found.len() != file.size {
            return Self::Damaged;
        }
        let (stamp, hash) = (FileStamp::of(&found), file.etag());
        if hash.is_empty() || verified.contains(path, &stamp, hash) {
            return Self::Whole;
        }
        match File::open(path).and_then(|opened| {
            // After a flush, the next write through a mapping changes the times. A file system that cannot flush, or a file
            // that cannot be written, gives no more than the times.
            let _ = opened.sync_data();
            let stamp = FileStamp::of(&opened.metadata()?);
            let mut digest = Digest::of(file);
            digest.read(&opened, hashed)?;
            let unchanged = FileStamp::of(&opened.metadata()?) == stamp;
            Ok((digest.finish() == hash, unchanged.then_some(stamp)))
        }) {
            Ok((true, stamp)) => {
                if let Some(stamp) = stamp {
                    verified.insert(path, &stamp, hash);
                }
                Self::Whole
            }
            Ok((false, _)) | Err(_) => Self::Damaged,
        }
    }
}
