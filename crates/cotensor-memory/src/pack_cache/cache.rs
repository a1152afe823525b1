//! The cache that a process opens.

use super::derived::DerivedFolders;
use super::folder::{private_folder, refused, remove_abandoned, temporary_name};
use super::format::plan;
use super::index::{PackIndex, pack_files};
use super::notes::Notes;
use super::verified::VerifiedPacks;
use super::writer::PackWriter;
use crate::host::MappedFileMut;
use cotensor_core::sync::lock;
use cotensor_core::{BlobCache, BlobLocation, ContentHash, DerivedFiles, Error, Hasher, Hold, PackMut, Result};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

/// A folder of packs that the processes of one user share.
///
/// A pack is written under a temporary name, flushed to the disk and then named by the hashes of its blobs, so a pack
/// with its final name is complete. Packs never change, and removing one is always safe.
///
/// A disk error or another program may still change a pack. Its blobs are therefore hashed by the first process that
/// uses it after each boot, and again after its time of last write changes. A damaged pack is removed, and its weights
/// are read from their original files into a new one.
pub struct PackCache {
    packs: PathBuf,
    index: Arc<Mutex<PackIndex>>,
    notes: Notes,
    derived: DerivedFolders,
}

/// A pack, or a folder of derived files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheEntry {
    /// Whether it is a pack of weights. Otherwise it has files in the layout of an engine's kernels.
    pub is_pack: bool,
    /// The file or the folder.
    pub path: PathBuf,
    /// Bytes on the disk.
    pub bytes: u64,
    /// The last use, as far as the file system records it.
    pub used: Option<SystemTime>,
}

/// The result of [`PackCache::verify`].
#[derive(Debug)]
pub struct Verification {
    /// The number of undamaged blobs in packs.
    pub blobs: usize,
    /// The number of undamaged derived files.
    pub files: usize,
    /// The number of undamaged notes.
    pub notes: usize,
    /// An error for each removed pack, folder of derived files and note, with its file. Where a single blob of a pack is
    /// damaged, its field is the hash of the blob.
    pub removed: Vec<Error>,
}

/// When a file was last read or written, as far as the file system records it.
fn last_use(found: &Metadata) -> Option<SystemTime> {
    found.accessed().ok().max(found.modified().ok())
}

impl PackCache {
    /// Opens the cache in `folder`, which it creates (mode 0700) if it does not exist.
    ///
    /// # Errors
    /// `Refused` when the folder belongs to another user, is writable for other users, or its subfolders are accessible
    /// to other users; `Io`.
    pub fn open(folder: &Path) -> Result<Self> {
        let (packs, notes, derived) = (folder.join("packs"), folder.join("notes"), folder.join("derived"));
        // The user chose `folder`, which may be a link. Its subfolders are the cache's own and are not.
        let found = private_folder(folder, |path| std::fs::metadata(path))?;
        if found.mode() & 0o022 != 0 {
            return Err(refused("other users can write to this folder", &found).in_file(folder));
        }
        for part in [&packs, &notes, &derived] {
            let found = private_folder(part, |path| std::fs::symlink_metadata(path))?;
            if found.mode() & 0o077 != 0 {
                return Err(refused("other users can access this folder", &found).in_file(part));
            }
            remove_abandoned(part);
        }
        let notes = Notes::new(notes);
        let mut index = PackIndex::new(packs.clone(), VerifiedPacks::new(notes.clone()));
        index.scan();
        let derived = DerivedFolders::new(derived, VerifiedPacks::new(notes.clone()));
        Ok(Self { packs, index: Arc::new(Mutex::new(index)), notes, derived })
    }

    /// The default folder: `$XDG_CACHE_HOME/cotensor` or `$HOME/.cache/cotensor`.
    ///
    /// # Errors
    /// `NotFound` when neither variable is set.
    pub fn default_dir() -> Result<PathBuf> {
        let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        absolute("XDG_CACHE_HOME")
            .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
            .map(|base| base.join("cotensor"))
            .ok_or_else(|| Error::not_found("no cache folder: set HOME, XDG_CACHE_HOME or COTENSOR_CACHE"))
    }

    /// The default folder, if a cache can be opened in it.
    pub fn usable_default_dir() -> Option<PathBuf> {
        Self::default_dir().ok().filter(|folder| Self::open(folder).is_ok())
    }

    /// The errors of packs that are ignored, or that were removed because they were damaged.
    pub fn problems(&self) -> Vec<Error> {
        self.index().problems()
    }

    /// The number of packs and folders of derived files, and their bytes on the disk.
    pub fn usage(&self) -> (usize, u64) {
        let packs = pack_files(&self.packs).map(|(_, stamp)| stamp.size);
        packs
            .chain(self.derived.all().map(|(_, bytes)| bytes))
            .fold((0, 0), |(count, all), bytes| (count + 1, all + bytes))
    }

    /// The packs and folders of derived files, in no order.
    pub fn entries(&self) -> Vec<CacheEntry> {
        let used = |path: &Path| std::fs::symlink_metadata(path).ok().and_then(|found| last_use(&found));
        let packs = pack_files(&self.packs).map(|(path, stamp)| CacheEntry {
            is_pack: true,
            bytes: stamp.size,
            used: used(&path),
            path,
        });
        let derived = self.derived.all().map(|(path, bytes)| CacheEntry {
            is_pack: false,
            bytes,
            used: used(&DerivedFolders::used(&path)),
            path,
        });
        packs.chain(derived).collect()
    }

    /// Hashes every blob, every derived file and every note, whatever was verified before, and removes the damaged ones.
    pub fn verify(&self) -> Verification {
        let (blobs, mut removed) = self.index().verify_all();
        let (files, folders) = self.derived.verify_all();
        let (notes, wrong) = self.notes.verify_all();
        removed.extend(folders.into_iter().chain(wrong));
        Verification { blobs, files, notes, removed }
    }

    /// Removes packs, derived files and notes that no process has used for `unused_for`. Returns the number of removed
    /// packs and folders of derived files, and their bytes on the disk. The bytes of a mapped pack are freed when the processes that map it end.
    ///
    /// Folders that a program [holds](DerivedFiles::hold_files) stay. A pack is used when it is written or mapped. File systems record the use about once a day.
    ///
    /// # Errors
    /// `Io` with the file that cannot be removed.
    pub fn prune(&self, unused_for: Duration) -> Result<(usize, u64)> {
        let now = SystemTime::now();
        let unused = |found: &Metadata| {
            last_use(found).is_some_and(|used| now.duration_since(used).unwrap_or_default() >= unused_for)
        };
        let is_unused = |path: &Path| std::fs::symlink_metadata(path).is_ok_and(|found| unused(&found));
        let remove = |path: &Path| match std::fs::remove_file(path) {
            // Another process has removed it.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(|error| Error::io("cannot remove", &error).in_file(path)),
        };
        let (mut count, mut bytes) = (0, 0);
        for (path, stamp) in pack_files(&self.packs).filter(|(path, _)| is_unused(path)) {
            remove(&path)?;
            (count, bytes) = (count + 1, bytes + stamp.size);
        }
        for (folder, len) in self.derived.all().filter(|(folder, _)| is_unused(&DerivedFolders::used(folder))) {
            let removed = DerivedFolders::remove_unheld(&folder);
            if removed.map_err(|error| Error::io("cannot remove", &error).in_file(&folder))? {
                (count, bytes) = (count + 1, bytes + len);
            }
        }
        self.notes.paths().filter(|path| is_unused(path)).try_for_each(|path| remove(&path))?;
        self.index().scan();
        Ok((count, bytes))
    }

    fn index(&self) -> MutexGuard<'_, PackIndex> {
        lock(&self.index)
    }
}

impl DerivedFiles for PackCache {
    fn find_files(&self, key: &ContentHash) -> Option<PathBuf> {
        self.derived.find_files(key)
    }

    fn hold_files(&self, key: &ContentHash) -> Option<Hold> {
        self.derived.hold_files(key)
    }

    fn remove_files(&self, key: &ContentHash) {
        self.derived.remove_files(key);
    }

    fn make_files(&self, key: &ContentHash, fill: &mut dyn FnMut(&Path) -> Result<()>) -> Result<PathBuf> {
        self.derived.make_files(key, fill)
    }
}

impl BlobCache for PackCache {
    fn find(&self, hash: &ContentHash) -> Option<BlobLocation> {
        self.index().find(hash)
    }

    fn begin(&self, blobs: &[(ContentHash, usize)]) -> Result<Box<dyn PackMut>> {
        let (entries, len) = plan(blobs)?;
        let mut hasher = Hasher::new("cotensor pack v1");
        for entry in &entries {
            hasher.field(entry.hash.as_bytes());
        }
        let target = self.packs.join(format!("{}.pack", hasher.finish()));
        let file = MappedFileMut::create(&self.packs, temporary_name, len)?;
        Ok(Box::new(PackWriter::new(file, entries, target, Arc::clone(&self.index))))
    }

    fn get_note(&self, key: &ContentHash) -> Option<Vec<u8>> {
        self.notes.get(key)
    }

    fn put_note(&self, key: &ContentHash, note: &[u8]) -> Result<()> {
        self.notes.put(key, note)
    }
}
