//! Parts of files of other programs.

use cotensor_core::{Error, ErrorKind, FileStamp, Result};
use std::fs::{self, File};
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// A file whose tensors are read one by one.
pub(super) struct TensorFile {
    path: PathBuf,
    file: File,
    /// Its length.
    pub(super) bytes: u64,
    /// At the time of opening.
    stamp: FileStamp,
}

impl TensorFile {
    /// # Errors
    /// `Invalid` for something else than a regular file, `Io`.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let io = |error: std::io::Error| Error::io("opening", &error).in_file(path);
        // Checked before the file is opened: opening a pipe would wait for its writer.
        if !fs::metadata(path).map_err(io)?.is_file() {
            return Err(Error::invalid("not a regular file").in_file(path));
        }
        let file = File::open(path).map_err(io)?;
        let stamp = FileStamp::of(&file.metadata().map_err(io)?);
        Ok(Self { path: path.to_path_buf(), file, bytes: stamp.size, stamp })
    }

    /// # Errors
    /// `Conflict` for a file that changed since it was opened, `Io`.
    pub(super) fn check_unchanged(&self) -> Result<()> {
        let now = self.file.metadata().map_err(|error| Error::io("reading", &error).in_file(&self.path))?;
        if FileStamp::of(&now) == self.stamp {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Conflict, "the file changed while its codes were read").in_file(&self.path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The file from its start.
    pub(super) fn header(&self) -> BufReader<&File> {
        BufReader::new(&self.file)
    }

    /// Bytes of a place that was checked to lie in the file.
    ///
    /// # Errors
    /// `Corrupt` for a file that became shorter, `Io`.
    pub(super) fn read(&self, offset: u64, length: u64) -> Result<Vec<u8>> {
        let io = |error: std::io::Error| Error::io("reading", &error).in_file(&self.path);
        let mut file = &self.file;
        file.seek(SeekFrom::Start(offset)).map_err(io)?;
        let mut found = Vec::with_capacity(usize::try_from(length.min(self.bytes)).unwrap_or_default());
        file.take(length).read_to_end(&mut found).map_err(io)?;
        if found.len() as u64 == length {
            Ok(found)
        } else {
            Err(Error::corrupt("the file is truncated").in_file(&self.path))
        }
    }
}
