use crate::cache::RepoFile;
use crate::id::ModelId;
use cotensor_core::Result;
use std::io::Read;

/// The hub at the other end of the network.
pub(crate) trait Remote {
    /// The commit of the id's revision.
    ///
    /// # Errors
    /// `NotFound` for an unknown model or revision, `Invalid` without access, `Io` or `TimedOut` without an
    /// answer, `Corrupt` for an answer of another form.
    fn commit(&self, id: &ModelId) -> Result<String>;

    /// The files of the repository at a commit.
    ///
    /// # Errors
    /// As [`commit`](Self::commit); `Invalid` for more files than a repository may have.
    fn files(&self, id: &ModelId, commit: &str) -> Result<Vec<RepoFile>>;

    /// The bytes of a file from the offset `from` on. A server may ignore the offset and send the whole file. Reading
    /// fails with `TimedOut` when no bytes arrive in time.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    fn open(&self, id: &ModelId, commit: &str, file: &RepoFile, from: u64) -> Result<Box<dyn Read>>;
}
