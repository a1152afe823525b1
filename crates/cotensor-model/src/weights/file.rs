use cotensor_core::{Error, ErrorKind, FileStamp, Hasher, Result};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// From this size on, several threads read: one core limits copying from the page cache. In bytes.
const PARALLEL_BYTES_MIN: usize = 8 << 20;

/// The threads of a large read.
const READERS: usize = 4;

/// An open file and its stamp at the time of opening.
pub(super) struct WeightFile {
    path: PathBuf,
    file: File,
    stamp: FileStamp,
}

impl WeightFile {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let open = || {
            let file = File::open(path)?;
            // A dirty page of a shared mapping can change again without a change of the times. After a flush, the next
            // change updates the times. A file system that cannot flush gives no more than the times.
            let _ = file.sync_data();
            let stamp = FileStamp::of(&file.metadata()?);
            Ok(Self { path: path.to_path_buf(), file, stamp })
        };
        open().map_err(|error: std::io::Error| Error::io("opening", &error).in_file(path))
    }

    pub(super) fn add_identity(&self, hasher: &mut Hasher) {
        let FileStamp { device, inode, size, modified, changed } = self.stamp;
        hasher.field(self.path.as_os_str().as_bytes()).number(device).number(inode).number(size);
        for number in [modified.0, modified.1, changed.0, changed.1] {
            hasher.number(number as u64);
        }
    }

    /// As [`FileStamp::settled`].
    pub(super) fn settled(&self, now: SystemTime) -> bool {
        self.stamp.settled(now)
    }

    /// # Errors
    /// `Conflict` when the file was written after it was opened.
    pub(super) fn check_unchanged(&self) -> Result<()> {
        let now = self.file.metadata().map_err(|error| Error::io("reading", &error).in_file(&self.path))?;
        if FileStamp::of(&now) == self.stamp { Ok(()) } else { Err(self.changed()) }
    }

    pub(super) fn changed(&self) -> Error {
        Error::new(ErrorKind::Conflict, "the file changed while its weights were read").in_file(&self.path)
    }

    /// Fills `target` from byte `offset`.
    pub(super) fn read(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(target, offset).map_err(|error| match error.kind() {
            // The graph checked the length when it was opened.
            std::io::ErrorKind::UnexpectedEof => self.changed(),
            _ => Error::io("reading", &error).in_file(&self.path),
        })
    }

    /// As [`read`](Self::read); several threads read a large target.
    pub(super) fn read_parallel(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        if target.len() < PARALLEL_BYTES_MIN {
            return self.read(offset, target);
        }
        let part = target.len().div_ceil(READERS);
        std::thread::scope(|scope| {
            let readers: Vec<_> = target
                .chunks_mut(part)
                .enumerate()
                .map(|(index, chunk)| scope.spawn(move || self.read(offset + (index * part) as u64, chunk)))
                .collect();
            readers.into_iter().try_for_each(|reader| match reader.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })
    }
}
