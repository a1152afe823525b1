//! Files of Cotensor's own cache, mapped. User files are never mapped: truncating one would kill its readers.

use crate::map::Map;
use cotensor_core::{Device, Error, Memory, MemoryKind, Result, Segment, SegmentMut, TENSOR_BYTES_MAX};
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, fstat, open};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A file, mapped read-only.
pub struct MappedFile {
    map: Map,
}

impl MappedFile {
    /// Maps a regular file that belongs to this user. Links are not followed.
    ///
    /// # Errors
    /// `Refused` for a link, another kind of file or another owner; `Io`.
    pub fn open(path: &Path) -> Result<Self> {
        let io = |error: rustix::io::Errno| Error::io("cannot map", &error.into()).in_file(path);
        let fd = open(path, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()).map_err(io)?;
        let stat = fstat(&fd).map_err(io)?;
        let regular = stat.st_mode & 0o170_000 == 0o100_000;
        if !regular || stat.st_uid != rustix::process::geteuid().as_raw() {
            let message = "not a regular file of this user";
            return Err(Error::new(cotensor_core::ErrorKind::Refused, message).in_file(path));
        }
        let len = usize::try_from(stat.st_size).map_err(|_| Error::corrupt("impossible size").in_file(path))?;
        Ok(Self { map: Map::new(fd.as_fd(), len, false).map_err(|error| error.in_file(path))? })
    }
}

impl Segment for MappedFile {
    fn len(&self) -> usize {
        self.map.len()
    }

    fn kind(&self) -> MemoryKind {
        MemoryKind::MappedFile
    }

    fn device(&self) -> Device {
        Device::Cpu
    }

    fn bytes(&self) -> Option<&[u8]> {
        Some(self.map.bytes())
    }
}

/// Memory in files of a folder; each file goes when its segment does.
#[derive(Debug)]
pub struct MappedFileMemory {
    folder: PathBuf,
    next: AtomicU64,
}

impl MappedFileMemory {
    /// Keeps its files in `folder`, which has to exist.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), next: AtomicU64::new(0) }
    }
}

impl Memory for MappedFileMemory {
    fn kind(&self) -> MemoryKind {
        MemoryKind::MappedFile
    }

    fn device(&self) -> Device {
        Device::Cpu
    }

    fn reserve(&self, len: usize) -> Result<Box<dyn SegmentMut>> {
        let name = format!("{}-{}.segment", std::process::id(), self.next.fetch_add(1, Ordering::Relaxed));
        let path = self.folder.join(name);
        let file = WritableFile::create(&path, len)?;
        // From here on the file lives through its descriptor and mapping alone.
        std::fs::remove_file(&path).map_err(|error| Error::io("cannot unlink", &error).in_file(&path))?;
        Ok(Box::new(file))
    }
}

/// A new file, mapped for writing.
pub(crate) struct WritableFile {
    map: Map,
    fd: OwnedFd,
}

impl WritableFile {
    /// Creates `path` with `len` bytes, all of them backed by disk.
    pub(crate) fn create(path: &Path, len: usize) -> Result<Self> {
        if len as u64 > TENSOR_BYTES_MAX {
            return Err(Error::invalid(format!("{len} bytes are more than a segment may have")).in_file(path));
        }
        let io = |error: rustix::io::Errno| {
            Error::io(format!("cannot make a file of {len} bytes"), &error.into()).in_file(path)
        };
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = open(path, flags, Mode::RUSR | Mode::WUSR).map_err(io)?;
        if len > 0 {
            // A full disk is an error now, not a SIGBUS while writing.
            fallocate(&fd, FallocateFlags::empty(), 0, len as u64).map_err(|error| {
                // The error that matters is the first.
                let _ = std::fs::remove_file(path);
                io(error)
            })?;
        }
        let map = Map::new(fd.as_fd(), len, true).map_err(|error| error.in_file(path))?;
        Ok(Self { map, fd })
    }

    /// The bytes for writing.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.map.bytes_mut().unwrap_or_default()
    }
}

impl SegmentMut for WritableFile {
    fn len(&self) -> usize {
        self.map.len()
    }

    fn bytes(&self) -> Option<&[u8]> {
        Some(self.map.bytes())
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        self.map.bytes_mut()
    }

    fn freeze(self: Box<Self>) -> Result<Arc<dyn Segment>> {
        let WritableFile { map, fd } = *self;
        Ok(Arc::new(MappedFile { map: map.into_read_only(fd.as_fd())? }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conforms_and_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        cotensor_core::testing::conformance(&MappedFileMemory::new(folder.path()));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn links_and_folders_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, b"data").unwrap();
        assert_eq!(MappedFile::open(&file).unwrap().bytes().unwrap(), b"data");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(MappedFile::open(&link).is_err());
        assert!(MappedFile::open(folder.path()).is_err());
        assert!(MappedFile::open(&folder.path().join("none")).is_err());
    }
}
