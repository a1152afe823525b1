use cotensor_core::{Error, Result};
use std::path::{Component, Path, PathBuf};

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

/// Refuses a location of external data that is not a plain path below the graph's folder.
///
/// # Errors
/// `Invalid`, with the location.
pub fn check_location(location: &str) -> Result<()> {
    let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    if !location.is_empty() && Path::new(location).components().all(is_plain) {
        Ok(())
    } else {
        Err(outside_folder(location))
    }
}

/// The error for external data outside the graph's folder.
pub fn outside_folder(location: &str) -> Error {
    Error::invalid(format!("external data {location:?} is not inside the model's folder"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_outside_the_folder_are_refused() {
        for location in ["model.onnx_data", "./a/b", "a..b"] {
            check_location(location).unwrap();
        }
        for location in ["", "..", "a/../b", "/a", "../a"] {
            assert!(check_location(location).unwrap_err().message().contains("not inside"), "{location}");
        }
    }
}
