//! Segments in files: where tensors go that nobody leases when memory is wanted.

use crate::descriptors::{are_scarce, none_left};
use crate::place::{Others, private_folder};
use crate::segment::Sealed;
use cotensor_core::{ContentHash, Error, ErrorKind, Hasher, Result, Segment, SegmentMut, size};
use cotensor_memory::MemfdMut;
use cotensor_store::{SpillStorage, SpilledSegment};
use rustix::fs::{FallocateFlags, FlockOperation, Mode, OFlags, fallocate, flock, open};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Read, hashed and written at a time.
const PIECE_BYTES: usize = 4 << 20;
/// How the folder of a daemon begins.
const PREFIX: &str = "cotensor-";
/// In it, the file that says whose it is: the path of the daemon's socket.
const OWNER: &str = "socket";

/// A segment's file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct SpillFile {
    pub(crate) number: u64,
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    /// Of its pieces, in hexadecimal.
    hash: String,
}

/// A daemon's folder of spilled segments: its own, mode 0700, below one that may be common to many.
pub(crate) struct Files {
    folder: PathBuf,
    /// Whose folder it is: the path of the daemon's socket.
    owner: PathBuf,
    /// Part of every file's name: a daemon that lost its place to another, and has this folder still, removes its own files only.
    tag: u32,
    bytes_max: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    bytes: u64,
    files: HashMap<u64, SpillFile>,
}

/// The folder of the daemon at `socket` below `folder`.
///
/// # Errors
/// `Io` when the current folder is not known.
pub(crate) fn folder_of(folder: &Path, socket: &Path) -> Result<PathBuf> {
    let (folder, socket) = (absolute(folder)?, absolute(socket)?);
    let name = ContentHash::of(socket.as_os_str().as_encoded_bytes()).to_string();
    Ok(folder.join(format!("{PREFIX}{}", &name[..16])))
}

/// Files are remembered by their paths, and a later daemon may run elsewhere.
fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|error| Error::io("finding the current folder", &error).in_file(path))
}

impl Files {
    /// Makes the folder where it is missing, and removes what daemons left that are dead. To be called by whoever has the
    /// lock of `socket`.
    ///
    /// # Errors
    /// `Refused` for a folder that others can reach; `Io`.
    pub(crate) fn open(below: &Path, socket: &Path, bytes_max: u64) -> Result<Arc<Self>> {
        let below = &absolute(below)?;
        private_folder(below, Others::Harmless)?;
        let folder = folder_of(below, socket)?;
        let mut tag = [0; 4];
        getrandom::fill(&mut tag).map_err(|error| Error::new(ErrorKind::Io, error.to_string()))?;
        let tag = u32::from_ne_bytes(tag);
        let files = Self { folder, owner: absolute(socket)?, tag, bytes_max, state: Mutex::default() };
        files.make_folder()?;
        remove_abandoned(below, &files.folder);
        Ok(Arc::new(files))
    }

    /// Makes the folder where it is missing.
    ///
    /// # Errors
    /// `Refused` for one that others can reach; `Io`.
    fn make_folder(&self) -> Result<()> {
        private_folder(&self.folder, Others::None)?;
        std::fs::write(self.folder.join(OWNER), self.owner.as_os_str().as_encoded_bytes())
            .map_err(|error| Error::io("writing", &error).in_file(&self.folder))
    }

    /// Takes up what a former server spilled; the other files are removed.
    pub(crate) fn take_up(self: &Arc<Self>, files: Vec<SpillFile>) -> Vec<Arc<dyn SpilledSegment>> {
        let mut state = self.state();
        for file in &files {
            state.next = state.next.max(file.number);
            state.bytes += file.bytes;
            state.files.insert(file.number, file.clone());
        }
        drop(state);
        for entry in std::fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.file_name().is_some_and(|name| name != OWNER) && !files.iter().any(|file| file.path == path) {
                drop(std::fs::remove_file(path));
            }
        }
        let spilled = |file| -> Arc<dyn SpilledSegment> { Arc::new(OnDisk { file, files: Arc::clone(self) }) };
        files.into_iter().map(spilled).collect()
    }

    /// What was spilled under a number.
    pub(crate) fn file(&self, number: u64) -> Option<SpillFile> {
        self.state().files.get(&number).cloned()
    }

    /// Ends all.
    pub(crate) fn remove(&self) {
        remove_folder(&self.folder);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number for a file of `bytes` bytes.
    fn reserve(&self, bytes: u64) -> Result<u64> {
        let mut state = self.state();
        if state.bytes.checked_add(bytes).is_none_or(|total| total > self.bytes_max) {
            let message = format!(
                "{} are spilled: {} more are beyond --max-spill {}",
                size(state.bytes),
                size(bytes),
                size(self.bytes_max)
            );
            return Err(Error::new(ErrorKind::OverBudget, message).in_file(&self.folder));
        }
        state.bytes += bytes;
        state.next += 1;
        Ok(state.next)
    }

    fn write(&self, path: &Path, source: &File, bytes: u64) -> std::io::Result<String> {
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        match fallocate(&file, FallocateFlags::empty(), 0, bytes.max(1)) {
            // Not every file system can say beforehand that there is room.
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => file.set_len(bytes)?,
            Err(error) => return Err(error.into()),
        }
        let mut piece = vec![0; PIECE_BYTES];
        let mut hasher = Hasher::new(CONTEXT);
        let mut at = 0;
        while at < bytes {
            let len = PIECE_BYTES.min((bytes - at) as usize);
            source.read_exact_at(&mut piece[..len], at)?;
            hasher.field(&piece[..len]);
            file.write_all(&piece[..len])?;
            at += len as u64;
        }
        Ok(hasher.finish().to_string())
    }
}

const CONTEXT: &str = "cotensor spill v1";

/// Whether a shorter file could have been written.
fn is_full(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

/// Spills into a folder's files.
pub(crate) struct IntoFiles(pub(crate) Arc<Files>);

impl SpillStorage for IntoFiles {
    fn spill(&self, segment: &dyn Segment) -> Result<Arc<dyn SpilledSegment>> {
        let files = &self.0;
        let io = |error: std::io::Error| Error::io("spilling", &error).in_file(&files.folder);
        let fd = segment.fd().ok_or_else(|| Error::unsupported("this segment has no descriptor"))?;
        let source = File::from(fd.try_clone_to_owned().map_err(io)?);
        let bytes = source.metadata().map_err(io)?.len();
        let number = files.reserve(bytes)?;
        let path = files.folder.join(format!("{number}-{:08x}.tensors", files.tag));
        let mut file = SpillFile { number, path, bytes, hash: String::new() };
        // From here on it is removed, and not counted any more, with this.
        let mut on_disk = OnDisk { file: file.clone(), files: Arc::clone(files) };
        let write = || files.write(&file.path, &source, bytes);
        let written = match write() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                tracing::error!("{} was removed, and the tensors spilled there are lost", files.folder.display());
                files.make_folder()?;
                write()
            }
            written => written,
        };
        file.hash = written.map_err(|error| match is_full(&error) {
            true => Error::new(ErrorKind::OverBudget, format!("spilling: {error}")).in_file(&files.folder),
            false => io(error),
        })?;
        files.state().files.insert(number, file.clone());
        on_disk.file.hash = file.hash;
        tracing::debug!("spilled {bytes} bytes to {}", on_disk.file.path.display());
        Ok(Arc::new(on_disk))
    }

    fn blocking(&self, work: &mut dyn FnMut()) {
        use tokio::runtime::{Handle, RuntimeFlavor};
        match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
            Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
            _ => work(),
        }
    }
}

/// A segment in a file, which goes with this.
struct OnDisk {
    file: SpillFile,
    files: Arc<Files>,
}

impl SpilledSegment for OnDisk {
    fn number(&self) -> u64 {
        self.file.number
    }

    fn bytes(&self) -> u64 {
        self.file.bytes
    }

    fn check(&self) -> Result<()> {
        let SpillFile { path, bytes, .. } = &self.file;
        let found = std::fs::symlink_metadata(path);
        match found.map_err(|error| Error::io("reading what was spilled", &error).in_file(path))?.len() == *bytes {
            true => Ok(()),
            false => Err(Error::corrupt("what was spilled is of another length").in_file(path)),
        }
    }

    fn restore(&self) -> Result<Arc<dyn Segment>> {
        let SpillFile { path, bytes, hash, .. } = &self.file;
        let io = |error: std::io::Error| Error::io("reading what was spilled", &error).in_file(path);
        let corrupt = |what: &str| Error::corrupt(format!("what was spilled is {what}")).in_file(path);
        let len = usize::try_from(*bytes).map_err(|_| corrupt("too long"))?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mut file = File::from(open(path, flags, Mode::empty()).map_err(|error| io(error.into()))?);
        if file.metadata().map_err(io)?.len() != *bytes {
            return Err(corrupt("of another length"));
        }
        let mut memory = MemfdMut::create(len)?;
        // What is kept in the end is a duplicate that is made while these two are open.
        if file.try_clone().map_or(true, are_scarce) {
            return Err(none_left());
        }
        let mut piece = vec![0; PIECE_BYTES];
        let mut hasher = Hasher::new(CONTEXT);
        let mut at = 0;
        while at < len {
            let part = piece.get_mut(..PIECE_BYTES.min(len - at)).unwrap_or_default();
            file.read_exact(part).map_err(io)?;
            hasher.field(part);
            memory.write_at(at, part)?;
            at += part.len();
        }
        if hasher.finish().to_string() != *hash {
            return Err(corrupt("changed"));
        }
        Ok(Arc::new(Sealed::of(memory)?))
    }
}

impl Drop for OnDisk {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.file.path));
        let mut state = self.files.state();
        state.files.remove(&self.file.number);
        state.bytes -= self.file.bytes;
    }
}

/// Removes a daemon's folder and what is in it.
pub(crate) fn remove_folder(folder: &Path) {
    if let Err(error) = std::fs::remove_dir_all(folder)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!("{} was not removed: {error}", folder.display());
    }
}

/// Removes folders below `below` whose daemons are dead: those whose socket's lock nobody holds.
fn remove_abandoned(below: &Path, own: &Path) {
    let entries = std::fs::read_dir(below).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX)) {
        let folder = entry.path();
        // Another user's, or something else that only has such a name.
        let Ok(owner) = std::fs::read(folder.join(OWNER)) else { continue };
        if folder == own || private_folder(&folder, Others::None).is_err() {
            continue;
        }
        let mut lock = owner;
        lock.extend_from_slice(b".lock");
        let lock = PathBuf::from(OsString::from_vec(lock));
        let held = match open(&lock, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty()) {
            Ok(lock) => flock(&lock, FlockOperation::NonBlockingLockShared).is_err(),
            Err(error) => error != rustix::io::Errno::NOENT,
        };
        if !held {
            tracing::info!("removing what a dead daemon spilled: {}", folder.display());
            remove_folder(&folder);
        }
    }
}

#[cfg(test)]
mod tests;
