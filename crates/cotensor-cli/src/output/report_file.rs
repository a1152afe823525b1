//! The HTML file of a report.

use cotensor::core::{Error, Result};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

/// The file of `--report`, opened before minutes of measurements. Its old content stays until the report is written. A
/// file created here is removed if no report is written.
pub(crate) struct ReportFile<'a> {
    path: &'a Path,
    file: File,
    /// Whether the file was created here and is still empty.
    empty: bool,
}

impl<'a> ReportFile<'a> {
    pub(crate) fn open(path: &'a Path) -> Result<Self> {
        let new = !path.exists();
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|error| Self::error(path, &error))?;
        Ok(Self { path, file, empty: new })
    }

    pub(crate) fn write(mut self, html: &str) -> Result<()> {
        // A pipe or a terminal cannot be truncated.
        let truncated =
            if self.file.metadata().is_ok_and(|file| file.is_file()) { self.file.set_len(0) } else { Ok(()) };
        truncated
            .and_then(|()| self.file.write_all(html.as_bytes()))
            .map_err(|error| Self::error(self.path, &error))?;
        self.empty = false;
        Ok(())
    }

    fn error(path: &Path, error: &std::io::Error) -> Error {
        Error::io("cannot write the report", error).in_file(path).in_field("--report")
    }
}

impl Drop for ReportFile<'_> {
    fn drop(&mut self) {
        if self.empty {
            // Best effort: an empty file does no harm.
            let _ = std::fs::remove_file(self.path);
        }
    }
}
