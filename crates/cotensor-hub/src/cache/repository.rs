use super::files::{beside, read, write};
use super::state::FileState;
use super::tree::{self, RepoFile};
use super::verified::VerifiedFiles;
use super::{BLOBS, MODEL_FOLDER, SNAPSHOTS};
use crate::id::{ModelId, is_commit};
use cotensor_core::{Error, FileStamp, Result};
use std::path::{Path, PathBuf};

/// The most bytes of a file in refs/.
const REF_BYTES_MAX: u64 = 256;
/// The most bytes of a list of files.
const TREE_BYTES_MAX: u64 = 16 << 20;

/// The folder of a model in the cache.
#[derive(Clone, Debug)]
pub(crate) struct Repository {
    folder: PathBuf,
    locks: PathBuf,
    verified: VerifiedFiles,
}

impl Repository {
    /// The folder of the model in `cache`. It may not exist.
    pub(crate) fn of(cache: &Path, id: &ModelId, verified: VerifiedFiles) -> Self {
        let name = format!("{MODEL_FOLDER}{}", id.name().replace('/', "--"));
        Self { folder: cache.join(&name), locks: cache.join(".locks").join(name), verified }
    }

    /// The commit of the id's revision, as far as the cache knows it.
    ///
    /// # Errors
    /// `Corrupt` for a file in refs/ that contains no commit, or `Io`.
    pub(crate) fn commit(&self, id: &ModelId) -> Result<Option<String>> {
        if let Some(commit) = id.commit() {
            return Ok(Some(commit.to_owned()));
        }
        let file = self.reference(id);
        let Some(bytes) = read(&file, REF_BYTES_MAX)? else { return Ok(None) };
        let text = String::from_utf8(bytes).unwrap_or_default();
        match text.trim() {
            commit if is_commit(commit) => Ok(Some(commit.to_owned())),
            _ => Err(Error::corrupt("the file contains no commit; `cotensor pull` writes it again").in_file(file)),
        }
    }

    fn reference(&self, id: &ModelId) -> PathBuf {
        self.folder.join("refs").join(id.revision())
    }

    /// Records the commit of the id's revision.
    pub(crate) fn set_commit(&self, id: &ModelId, commit: &str) -> Result<()> {
        match id.commit() {
            Some(_) => Ok(()),
            None => write(&self.reference(id), commit.as_bytes()),
        }
    }

    /// The folder of the snapshots.
    pub(crate) fn snapshots(&self) -> PathBuf {
        self.folder.join(SNAPSHOTS)
    }

    /// The folder with the files of a commit.
    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.snapshots().join(commit)
    }

    /// The blob of a file.
    pub(crate) fn blob(&self, file: &RepoFile) -> PathBuf {
        self.folder.join(BLOBS).join(file.etag())
    }

    /// The lock of a file's download.
    pub(crate) fn lock(&self, file: &RepoFile) -> PathBuf {
        self.locks.join(format!("{}.lock", file.etag()))
    }

    fn tree(&self, commit: &str) -> PathBuf {
        self.folder.join("trees").join(format!("{commit}.json"))
    }

    /// The files of a commit, if the cache has their list.
    pub(crate) fn files(&self, commit: &str) -> Result<Option<Vec<RepoFile>>> {
        Ok(read(&self.tree(commit), TREE_BYTES_MAX)?.and_then(|bytes| tree::decode(&bytes)))
    }

    /// Records the files of a commit.
    pub(crate) fn set_files(&self, commit: &str, files: &[RepoFile]) -> Result<()> {
        write(&self.tree(commit), &tree::encode(files))
    }

    /// Compares the file in the snapshot of a commit with the list of files. Calls `hashed` as [`FileState::of`].
    pub(crate) fn state(&self, commit: &str, file: &RepoFile, hashed: &dyn Fn(u64)) -> FileState {
        self.compare(self.snapshot(commit).join(&file.path), file, hashed)
    }

    /// As [`state`](Self::state), for the blob of a file.
    pub(crate) fn blob_state(&self, file: &RepoFile, hashed: &dyn Fn(u64)) -> FileState {
        self.compare(self.blob(file), file, hashed)
    }

    fn compare(&self, path: PathBuf, file: &RepoFile, hashed: &dyn Fn(u64)) -> FileState {
        // The record has the path of the blob, so that a file is hashed once for all commits.
        let path = path.canonicalize().unwrap_or(path);
        FileState::of(&path, file, &self.verified, hashed)
    }

    /// Records that the blob of a file was just written with the right bytes.
    pub(crate) fn set_verified(&self, file: &RepoFile) {
        let path = self.blob(file);
        if let (Ok(path), Ok(found)) = (path.canonicalize(), path.metadata()) {
            self.verified.insert_written(&path, &FileStamp::of(&found), file.etag());
        }
    }

    /// Adds the link to a file's blob to the snapshot of a commit.
    pub(crate) fn link(&self, commit: &str, file: &RepoFile) -> Result<()> {
        let link = self.snapshot(commit).join(&file.path);
        let folder = link.parent().unwrap_or(&self.folder);
        let io = |error: std::io::Error| Error::io("cannot link a file of the hub's cache", &error).in_file(&link);
        std::fs::create_dir_all(folder).map_err(io)?;
        let up = "../".repeat(2 + file.path.matches('/').count());
        let target = PathBuf::from(format!("{up}{BLOBS}/{}", file.etag()));
        if std::fs::read_link(&link).is_ok_and(|found| found == target) {
            return Ok(());
        }
        // A link under another name that is renamed replaces a wrong one without a time at which there is none.
        let beside = beside(&link);
        std::os::unix::fs::symlink(&target, &beside).map_err(io)?;
        std::fs::rename(&beside, &link).inspect_err(|_| drop(std::fs::remove_file(&beside))).map_err(io)
    }
}
