//! Folders of files that are derived from blobs for one machine, such as weights in the layout of an engine's kernels.

use super::folder::temporary_name;
use super::verified::VerifiedPacks;
use crate::host::MappedFile;
use cotensor_core::{ContentHash, DerivedFiles, Error, Result, Segment};
use std::fs::{DirBuilder, File};
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The file with a line for each other file of a folder: hash and name.
const MANIFEST: &str = "manifest";
/// The most bytes of a manifest.
const MANIFEST_BYTES_MAX: u64 = 1 << 16;

/// Folders by key. A folder is filled under a temporary name, flushed to the disk and then renamed, so a folder with its
/// final name is complete. Like packs, its files are hashed by the first process that uses them after each boot.
pub(super) struct DerivedFolders {
    root: PathBuf,
    verified: VerifiedPacks,
}

impl DerivedFolders {
    pub(super) fn new(root: PathBuf, verified: VerifiedPacks) -> Self {
        Self { root, verified }
    }

    /// The folders, each with the bytes of its files.
    pub(super) fn all(&self) -> impl Iterator<Item = (PathBuf, u64)> + use<> {
        let bytes = |folder: &Path| entries(folder).filter_map(|path| Some(path.metadata().ok()?.len())).sum();
        entries(&self.root).filter(|path| path.join(MANIFEST).is_file()).map(move |path| {
            let bytes = bytes(&path);
            (path, bytes)
        })
    }

    /// The file whose times show the last use of a folder.
    pub(super) fn used(folder: &Path) -> PathBuf {
        folder.join(MANIFEST)
    }

    fn folder(&self, key: &ContentHash) -> PathBuf {
        self.root.join(key.to_string())
    }

    /// Whether the files of the folder of `key` are those of its manifest.
    fn is_undamaged(&self, key: &ContentHash) -> bool {
        let manifest = self.folder(key).join(MANIFEST);
        let small = manifest.metadata().is_ok_and(|file| file.is_file() && file.len() <= MANIFEST_BYTES_MAX);
        let Some(text) = small.then(|| std::fs::read_to_string(&manifest).ok()).flatten() else { return false };
        text.lines().all(|line| line.split_once(' ').is_some_and(|(hash, name)| self.has(key, name, hash)))
    }

    /// Whether the folder of `key` has a file `name` with this hash.
    fn has(&self, key: &ContentHash, name: &str, hash: &str) -> bool {
        // Another path would lead out of the folder.
        let plain = Path::new(name).file_name().is_some_and(|plain| plain == name);
        let Some(file) = plain.then(|| MappedFile::open(&self.folder(key).join(name)).ok()).flatten() else {
            return false;
        };
        let noted = PathBuf::from(format!("{key}-{name}"));
        if self.verified.contains(&noted, file.id()) {
            return true;
        }
        let is_same = hash_of(&file) == hash;
        if is_same {
            self.verified.insert(&noted, file.id());
        }
        is_same
    }
}

impl DerivedFiles for DerivedFolders {
    fn find_files(&self, key: &ContentHash) -> Option<PathBuf> {
        let folder = self.folder(key);
        if !folder.is_dir() {
            return None;
        }
        if self.is_undamaged(key) {
            return Some(folder);
        }
        // A damaged folder is made again.
        let _ = std::fs::remove_dir_all(&folder);
        None
    }

    fn make_files(&self, key: &ContentHash, fill: &mut dyn FnMut(&Path) -> Result<()>) -> Result<PathBuf> {
        let io = |error: std::io::Error| Error::io("cannot write derived files", &error).in_file(&self.root);
        // One process fills the folder; the others wait for it.
        let lock = File::create(self.root.join(format!(".lock-{key}"))).map_err(io)?;
        lock.lock().map_err(io)?;
        if let Some(folder) = self.find_files(key) {
            return Ok(folder);
        }
        let temporary = Temporary::new(&self.root).map_err(io)?;
        fill(&temporary.path)?;
        let mut manifest = String::new();
        for path in entries(&temporary.path) {
            File::open(&path).and_then(|file| file.sync_all()).map_err(io)?;
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            manifest.push_str(&format!("{} {name}\n", hash_of(&MappedFile::open(&path)?)));
        }
        let write = || {
            let mut file = File::create(temporary.path.join(MANIFEST))?;
            file.write_all(manifest.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&temporary.path, self.folder(key))?;
            File::open(&self.root)?.sync_all()
        };
        write().map_err(io)?;
        // Notes that the files are verified, without hashing them again.
        for (_, name) in manifest.lines().filter_map(|line| line.split_once(' ')) {
            if let Ok(file) = MappedFile::open(&self.folder(key).join(name)) {
                self.verified.insert(&PathBuf::from(format!("{key}-{name}")), file.id());
            }
        }
        Ok(self.folder(key))
    }
}

/// A private folder, removed on drop unless it was renamed. Its lock shows that its writer lives.
struct Temporary {
    path: PathBuf,
    _lock: File,
}

impl Temporary {
    fn new(root: &Path) -> std::io::Result<Self> {
        let path = root.join(temporary_name());
        DirBuilder::new().mode(0o700).create(&path)?;
        let lock = File::open(&path)?;
        lock.lock()?;
        Ok(Self { path, _lock: lock })
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // After a rename the folder does not exist any more.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

fn hash_of(file: &MappedFile) -> String {
    ContentHash::of(file.bytes().unwrap_or_default()).to_string()
}
