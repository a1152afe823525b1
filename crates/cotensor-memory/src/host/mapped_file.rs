//! Mapped files of Cotensor's own folders. Files of users are never mapped: truncating one raises SIGBUS in its
//! readers.

use crate::mapping::{Access, Mapping};
use cotensor_core::{
    ContentHash, Device, Error, ErrorKind, FileStamp, Memory, MemoryKind, Result, Segment, SegmentMut, padded, size,
};
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, open};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A file, mapped read-only. Its descriptor stays open for [private mappings](crate::PrivateMapping).
pub struct MappedFile {
    map: Mapping,
    file: File,
    stamp: FileStamp,
}

impl MappedFile {
    /// Maps a regular file of this user. Does not follow a link at the end of `path`.
    ///
    /// # Errors
    /// `Refused` for a file that is not regular or of another owner, and for a link, `NotFound`, `Corrupt` for an impossible
    /// length, `Io`.
    pub fn open(path: &Path) -> Result<Self> {
        let io = |error: std::io::Error| Error::io("cannot map", &error).in_file(path);
        // Opening a named pipe would block without NONBLOCK.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let refused = || Error::new(ErrorKind::Refused, "not a regular file of this user").in_file(path);
        let file = open(path, flags, Mode::empty()).map(File::from).map_err(|error| match error {
            Errno::LOOP => refused(),
            error => io(error.into()),
        })?;
        let found = file.metadata().map_err(io)?;
        if !found.is_file() || found.uid() != rustix::process::geteuid().as_raw() {
            return Err(refused());
        }
        let len = usize::try_from(found.len()).ok().filter(|&len| padded(len).is_ok());
        let len = len.ok_or_else(|| Error::corrupt("impossible length").in_file(path))?;
        let map = Mapping::new(file.as_fd(), len, Access::Read).map_err(|error| error.in_file(path))?;
        Ok(Self { map, file, stamp: FileStamp::of(&found) })
    }

    /// The hash of the file, which is read piece by piece: a hash of the mapping would keep all its pages in this process.
    ///
    /// # Errors
    /// `Io` when the file cannot be read.
    pub(crate) fn content_hash(&self) -> Result<ContentHash> {
        ContentHash::of_pieces(self.map.len(), |at, piece| {
            self.file.read_exact_at(piece, at as u64).map_err(|error| Error::io("cannot read", &error))
        })
    }

    /// The identity of the file when it was mapped.
    pub(crate) fn stamp(&self) -> FileStamp {
        self.stamp
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

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }
}

/// Memory in unlinked files of a folder; a file is deleted with its segment.
#[derive(Debug)]
pub struct MappedFileMemory {
    folder: PathBuf,
    next: AtomicU64,
}

impl MappedFileMemory {
    /// A memory with its files in `folder`, which exists.
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
        let name = || format!("{}-{}.segment", std::process::id(), self.next.fetch_add(1, Ordering::Relaxed));
        let file = MappedFileMut::create(&self.folder, name, len)?;
        // The descriptor and the mapping keep the unlinked file.
        std::fs::remove_file(&file.path).map_err(|error| Error::io("cannot unlink", &error).in_file(&file.path))?;
        Ok(Box::new(file))
    }
}

/// The most names that are tried for a new file. Containers reuse process ids, and a killed process leaves its files.
const NAMES_TRIED_MAX: usize = 10_000;

/// A new file, mapped for writing.
pub(crate) struct MappedFileMut {
    map: Mapping,
    file: File,
    path: PathBuf,
}

impl MappedFileMut {
    /// Creates a file of `len` bytes, all of them allocated on the disk, in `folder` under the first free name of
    /// `name`. Leaves no file after an error.
    pub(crate) fn create(folder: &Path, mut name: impl FnMut() -> String, len: usize) -> Result<Self> {
        padded(len)?;
        for _ in 0..NAMES_TRIED_MAX {
            let path = folder.join(name());
            match OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path) {
                Ok(file) => return Self::prepare(file, path, len),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(Error::io("cannot create a file", &error).in_file(path)),
            }
        }
        Err(Error::new(ErrorKind::Io, "no name for a new file is free; remove the files of ended processes")
            .in_file(folder))
    }

    fn prepare(file: File, path: PathBuf, len: usize) -> Result<Self> {
        // The lock shows other processes that the writer is alive. Without locks they keep the file longer.
        let _ = file.try_lock();
        // A full disk is an error here, and SIGBUS during a later write without this call.
        let backed = if len > 0 { fallocate(&file, FallocateFlags::empty(), 0, len as u64) } else { Ok(()) };
        let map = backed
            .map_err(|error| Error::io(format!("cannot create a file of {}", size(len as u64)), &error.into()))
            .and_then(|()| Mapping::new(file.as_fd(), len, Access::Write));
        match map {
            Ok(map) => Ok(Self { map, file, path }),
            Err(error) => {
                // Best effort; the first error is returned.
                let _ = std::fs::remove_file(&path);
                Err(error.in_file(path))
            }
        }
    }

    /// The path at creation.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The bytes for writing.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.map.bytes_mut().unwrap_or_default()
    }

    /// Flushes the bytes to the disk.
    pub(crate) fn sync(&self) -> Result<()> {
        // fdatasync includes pages that were written through the mapping.
        self.file.sync_data().map_err(|error| Error::io("cannot write to disk", &error).in_file(&self.path))
    }

    /// Ends writing: the mapping becomes read-only.
    pub(crate) fn into_mapped(self) -> Result<MappedFile> {
        let len = self.map.len();
        let map = self.map.remap_private(self.file.as_fd(), len, Access::Read)?;
        let found = self.file.metadata().map_err(|error| Error::io("cannot inspect", &error).in_file(&self.path))?;
        // The lock marks a file that is being written.
        let _ = self.file.unlock();
        Ok(MappedFile { map, file: self.file, stamp: FileStamp::of(&found) })
    }
}

impl SegmentMut for MappedFileMut {
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
        Ok(Arc::new(self.into_mapped()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Resource, Rlimit};

    #[test]
    fn mapped_file_memory_conforms_and_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        cotensor_core::testing::conformance(&MappedFileMemory::new(folder.path()));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn private_mapping_of_a_mapped_file_is_writable() {
        let folder = tempfile::tempdir().unwrap();
        let mapped = MappedFileMemory::new(folder.path()).copy_of(&[7; 5000]).unwrap().freeze().unwrap();
        let mut copy = crate::PrivateMapping::of(&*mapped, 64..5000).unwrap();
        copy.bytes_mut().fill(8);
        assert!(copy.bytes().iter().all(|&byte| byte == 8));
        assert_eq!(mapped.bytes().unwrap(), [7; 5000]);
    }

    #[test]
    fn links_and_folders_are_not_mapped() {
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

    #[test]
    fn names_of_existing_files_are_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let left: Vec<_> = (0..3).map(|i| folder.path().join(format!("{}-{i}.segment", std::process::id()))).collect();
        left.iter().for_each(|path| std::fs::write(path, b"left").unwrap());
        assert!(MappedFileMemory::new(folder.path()).reserve(100).is_ok());
        assert!(left.iter().all(|path| std::fs::read(path).unwrap() == b"left"));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3);
    }

    #[test]
    fn file_that_cannot_be_mapped_is_removed() {
        const CHILD: &str = "COTENSOR_TEST_SMALL_FOLDER";
        const LEN: usize = 64 << 20;
        if let Some(folder) = std::env::var_os(CHILD) {
            // In a child process, because the limit applies to the whole process.
            let limit = Some(LEN as u64 / 2);
            rustix::process::setrlimit(Resource::As, Rlimit { current: limit, maximum: limit }).unwrap();
            let refused = MappedFileMemory::new(folder).reserve(LEN).err().unwrap();
            assert!(refused.to_string().contains("cannot map"), "{refused}");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let module = module_path!().split_once("::").map_or("", |(_crate, path)| path);
        let test = format!("{module}::file_that_cannot_be_mapped_is_removed");
        child.args(["--exact", &test, "--test-threads=1"]);
        let output = child.env(CHILD, folder.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
