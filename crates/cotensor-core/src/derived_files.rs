use crate::{ContentHash, Result};
use std::any::Any;
use std::path::{Path, PathBuf};

/// Keeps a folder of derived files from being removed as unused, for as long as it exists.
pub type Hold = Box<dyn Any + Send + Sync>;

/// Keeps folders of files that are derived for one machine: weights in the layout of an engine's kernels, models with weights of few
/// bits. Processes map the same files.
pub trait DerivedFiles: Send + Sync {
    /// The folder with this key, if it is complete and undamaged. Its files never change.
    fn find_files(&self, key: &ContentHash) -> Option<PathBuf>;

    /// Holds the folder with this key for a program that opens its files later. `None` if there is no such folder any more.
    fn hold_files(&self, key: &ContentHash) -> Option<Hold>;

    /// Removes the folder with this key, because its files are of no use. Processes that map them keep them.
    fn remove_files(&self, key: &ContentHash);

    /// Makes the folder with this key: `fill` writes files, and folders of files, into an empty folder. Of several processes, one fills it and
    /// the others wait. If another process made it, `fill` is not called.
    ///
    /// # Errors
    /// The errors of `fill`, or [`ErrorKind::Io`](crate::ErrorKind::Io); no part of the folder remains.
    fn make_files(&self, key: &ContentHash, fill: &mut dyn FnMut(&Path) -> Result<()>) -> Result<PathBuf>;
}
