use cotensor_core::Result;
use std::path::{Path, PathBuf};

/// The file of a graph, and the files beside it with the data of its initializers: on a disk, or in a browser.
pub trait GraphFiles {
    /// The graph's own file, as [`WeightSource`](crate::WeightSource) names it.
    ///
    /// # Errors
    /// `Io` when the path cannot be resolved.
    fn own(&self) -> Result<PathBuf>;

    /// The file with external data at `location`, a path relative to the graph, and its length in bytes.
    ///
    /// # Errors
    /// `NotFound` without the file, `Invalid` for a location outside the graph's folder.
    fn external(&mut self, location: &str) -> Result<(PathBuf, u64)>;

    /// Fills `target` from byte `offset` of one of these files.
    ///
    /// # Errors
    /// `Io` when the file cannot be read.
    fn read(&self, file: &Path, offset: u64, target: &mut [u8]) -> Result<()>;
}
