//! Weights kept beyond a process: packs in a private folder, mapped by whoever wants them.

mod format;
mod index;
mod notes;
#[cfg(test)]
mod tests;
mod verified;
mod writer;

use crate::host::MappedFileMut;
use cotensor_core::{BlobCache, ContentHash, Error, ErrorKind, Hasher, Located, PackMut, Result};
use format::plan;
pub use format::{PackEntry, parse_pack_table};
use index::{PackIndex, pack_files};
use notes::Notes;
use std::fs::Metadata;
use std::io::ErrorKind::AlreadyExists;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use verified::Verified;
use writer::NewPack;

/// Temporary files of writers that died are removed after this long where locks do not work.
const ABANDONED_AFTER: Duration = Duration::from_secs(24 * 3600);
/// Temporary files that nobody holds a lock on are removed after this long: making and naming one is without.
const UNLOCKED_AFTER: Duration = Duration::from_secs(60);

/// A folder of packs that this user's processes share.
///
/// A pack is written under a temporary name, flushed to the disk, and only then named by what it holds, so every pack
/// that has a name is whole. Packs never change; removing one is always safe.
///
/// The disk, or another program, may still change one. So the contents of a pack are hashed when the first process after the
/// start of the machine uses it, and again when its time of the last write is another. A damaged pack is removed, and the
/// weights are read from their files into a new one.
pub struct PackCache {
    packs: PathBuf,
    index: Arc<Mutex<PackIndex>>,
    notes: Notes,
}

impl PackCache {
    /// Opens the cache in `folder`, making it (mode 0700) if it is not there.
    ///
    /// # Errors
    /// `Refused` when the folder belongs to somebody else, others may write to it or may enter what it holds; `Io`.
    pub fn open(folder: &Path) -> Result<Self> {
        let (packs, notes) = (folder.join("packs"), folder.join("notes"));
        // Where the user put it, which may be through a link; what is inside is ours and is not.
        let found = private_folder(folder, |path| std::fs::metadata(path))?;
        if found.mode() & 0o022 != 0 {
            return Err(refused("others may write to this folder", &found).in_file(folder));
        }
        for part in [&packs, &notes] {
            let found = private_folder(part, |path| std::fs::symlink_metadata(path))?;
            if found.mode() & 0o077 != 0 {
                return Err(refused("others may enter this folder", &found).in_file(part));
            }
            remove_abandoned(part);
        }
        let notes = Notes::new(notes);
        let mut index = PackIndex::new(packs.clone(), Verified::new(notes.clone()));
        index.scan();
        Ok(Self { packs, index: Arc::new(Mutex::new(index)), notes })
    }

    /// Where the cache lies unless the caller says otherwise: `$XDG_CACHE_HOME/cotensor` or `$HOME/.cache/cotensor`.
    ///
    /// # Errors
    /// `NotFound` when neither is set.
    pub fn default_dir() -> Result<PathBuf> {
        let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        absolute("XDG_CACHE_HOME")
            .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
            .map(|base| base.join("cotensor"))
            .ok_or_else(|| Error::not_found("no cache folder: set HOME, XDG_CACHE_HOME or COTENSOR_CACHE"))
    }

    /// Why packs are ignored, or were removed because they were damaged.
    pub fn problems(&self) -> Vec<Error> {
        self.index().problems()
    }

    /// Number of packs and their bytes on disk.
    pub fn usage(&self) -> (usize, u64) {
        pack_files(&self.packs).fold((0, 0), |(count, bytes), (_, id)| (count + 1, bytes + id.len()))
    }

    /// Hashes every content again and removes damaged packs. The number of contents that have their hashes, and an error for
    /// each pack that was removed, naming its file and, where only a content is wrong, that content's hash.
    pub fn verify(&self) -> (usize, Vec<Error>) {
        self.index().verify_all()
    }

    /// Removes packs and notes that no process has used for `unused_for`. The number of packs that were removed, and their
    /// bytes on disk; those of packs that a process maps return when it ends.
    ///
    /// A pack counts as used when it is made or mapped. File systems record that about once a day.
    ///
    /// # Errors
    /// `Io` naming a file that cannot be removed.
    pub fn prune(&self, unused_for: Duration) -> Result<(usize, u64)> {
        let now = SystemTime::now();
        let unused = |found: &Metadata| {
            let used = found.accessed().ok().max(found.modified().ok());
            used.is_some_and(|used| now.duration_since(used).unwrap_or_default() >= unused_for)
        };
        let remove = |path: &Path| match std::fs::remove_file(path) {
            // Another process was faster.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(|error| Error::io("cannot remove", &error).in_file(path)),
        };
        let (mut count, mut bytes) = (0, 0);
        for (path, id) in pack_files(&self.packs) {
            if std::fs::symlink_metadata(&path).is_ok_and(|found| unused(&found)) {
                remove(&path)?;
                (count, bytes) = (count + 1, bytes + id.len());
            }
        }
        self.notes
            .paths()
            .filter(|path| std::fs::symlink_metadata(path).is_ok_and(|found| unused(&found)))
            .try_for_each(|path| remove(&path))?;
        self.index().scan();
        Ok((count, bytes))
    }

    fn index(&self) -> MutexGuard<'_, PackIndex> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes `path` if it is not there; it has to be a folder of this user.
fn private_folder(path: &Path, look: impl Fn(&Path) -> std::io::Result<Metadata>) -> Result<Metadata> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    // What is there and no folder is told below.
    let made = made.or_else(|error| if error.kind() == AlreadyExists { Ok(()) } else { Err(error) });
    let found = made.and_then(|()| look(path));
    let found = found.map_err(|error| Error::io("cannot use this folder as a cache", &error).in_file(path))?;
    if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
        return Err(refused("not a folder of this user", &found).in_file(path));
    }
    Ok(found)
}

fn refused(what: &str, found: &Metadata) -> Error {
    let mode = found.mode() & 0o7777;
    Error::new(ErrorKind::Refused, format!("{what} (owner {}, mode {mode:04o}); 0700 is right", found.uid()))
}

fn remove_abandoned(folder: &Path) {
    let now = SystemTime::now();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let age = entry.metadata().and_then(|file| file.modified()).ok().and_then(|at| now.duration_since(at).ok());
        let unlocked = || std::fs::File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok());
        let abandoned = |age| age > ABANDONED_AFTER || age > UNLOCKED_AFTER && unlocked();
        if entry.file_name().to_string_lossy().starts_with(".tmp-") && age.is_some_and(abandoned) {
            // Somebody else may have been faster.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// A name that no other writer is likely to choose.
fn temporary_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let nanos = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.subsec_nanos());
    format!(".tmp-{}-{number}-{nanos}", std::process::id())
}

impl BlobCache for PackCache {
    fn find(&self, hash: &ContentHash) -> Option<Located> {
        self.index().find(hash)
    }

    fn begin(&self, entries: &[(ContentHash, usize)]) -> Result<Box<dyn PackMut>> {
        let (entries, len) = plan(entries)?;
        let mut hasher = Hasher::new("cotensor pack v1");
        for entry in &entries {
            hasher.field(entry.hash.as_bytes());
        }
        let target = self.packs.join(format!("{}.pack", hasher.finish()));
        let file = MappedFileMut::create(&self.packs, temporary_name, len)?;
        Ok(Box::new(NewPack::new(file, entries, target, Arc::clone(&self.index))))
    }

    fn get_note(&self, key: &ContentHash) -> Option<Vec<u8>> {
        self.notes.get_note(key)
    }

    fn put_note(&self, key: &ContentHash, note: &[u8]) -> Result<()> {
        self.notes.put_note(key, note)
    }
}
