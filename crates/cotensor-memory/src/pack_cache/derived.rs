//! Folders of files that are derived for one machine: weights in the layout of an engine's kernels, models with weights of few bits.

use super::folder::{is_temporary, temporary_name};
use super::verified::VerifiedPacks;
use crate::host::MappedFile;
use crate::process::lock_file;
use cotensor_core::{ContentHash, DerivedFiles, Error, ErrorKind, Hold, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{DirBuilder, File, TryLockError};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The file with a line for each other file of a folder, hash and name, and the hash of these lines as the last line.
const MANIFEST: &str = "manifest";
/// The most bytes of a manifest: those of 10,000 files with long names.
const MANIFEST_BYTES_MAX: u64 = 4 << 20;
/// The bytes of a hash in a manifest, and what follows it beside a name.
const LINE_BYTES: usize = 64 + 2;
/// The most levels of folders inside of a folder.
const DEPTH_MAX: usize = 4;

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
        let bytes =
            |folder: &Path| files_below(folder).iter().filter_map(|path| Some(path.metadata().ok()?.len())).sum();
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

    /// Removes a folder that no program holds. Returns whether it did.
    ///
    /// # Errors
    /// Those of removing it.
    pub(super) fn remove_unheld(folder: &Path) -> std::io::Result<bool> {
        let manifest = File::open(Self::used(folder))?;
        match manifest.try_lock() {
            Ok(()) => std::fs::remove_dir_all(folder).map(|()| true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Hashes every file and removes folders with a damaged one. Returns the number of undamaged files, and an error for
    /// each removed folder.
    pub(super) fn verify_all(&self) -> (usize, Vec<Error>) {
        let (mut intact, mut problems) = (0, Vec::new());
        for folder in entries(&self.root).filter(|path| path.is_dir() && !is_temporary(path)) {
            match self.check(&folder, false) {
                Ok(files) => intact += files,
                Err(problem) => {
                    remove_damaged(&folder, &problem);
                    problems.push(problem);
                }
            }
        }
        (intact, problems)
    }

    /// Checks that the files of a folder are those of its manifest, and returns their number. A file that was verified
    /// since the boot is not hashed again if `trusts_notes`.
    ///
    /// # Errors
    /// `Corrupt` or `Refused` with the damaged file, `Io` when it cannot be read.
    fn check(&self, folder: &Path, trusts_notes: bool) -> Result<usize> {
        let path = folder.join(MANIFEST);
        let manifest = read_manifest(&path).ok_or_else(|| Error::corrupt("the manifest is damaged").in_file(&path))?;
        if names_below(folder).is_none_or(|names| !names.iter().eq(manifest.keys())) {
            return Err(Error::corrupt("the files are not those of the manifest").in_file(folder));
        }
        for (name, hash) in &manifest {
            let path = folder.join(name);
            let file = MappedFile::open(&path)?;
            let noted = noted(folder, name);
            if !(trusts_notes && self.verified.contains(&noted, file.stamp())) {
                if hash_of(&file, &path)? != *hash {
                    return Err(Error::corrupt("the file does not match its hash").in_file(path));
                }
                self.verified.insert(&noted, file.stamp());
            }
        }
        Ok(manifest.len())
    }
}

/// The name of a file in the notes of verified files. Names of notes have no folders.
fn noted(folder: &Path, name: &str) -> PathBuf {
    let key = folder.file_name().unwrap_or_default().to_string_lossy();
    PathBuf::from(format!("{key}-{}", name.replace('%', "%25").replace('/', "%2F")))
}

/// The hash of each file by its name. `None` for a manifest that is damaged, too long or empty.
fn read_manifest(path: &Path) -> Option<BTreeMap<String, String>> {
    let found = path.symlink_metadata().ok()?;
    (found.is_file() && found.len() <= MANIFEST_BYTES_MAX).then_some(())?;
    let text = std::fs::read_to_string(path).ok()?;
    let (lines, hash) = text.strip_suffix('\n')?.rsplit_once('\n')?;
    (ContentHash::of(format!("{lines}\n").as_bytes()).to_string() == hash).then_some(())?;
    let parts = |line: &str| line.split_once(' ').map(|(hash, name)| (name.to_owned(), hash.to_owned()));
    lines.lines().map(parts).collect()
}

/// Removes a folder unless the reason is that a file could not be read, which says nothing about its bytes.
fn remove_damaged(folder: &Path, problem: &Error) {
    if problem.kind() != ErrorKind::Io {
        remove(folder);
    }
}

fn remove(folder: &Path) {
    // A folder that cannot be removed is found damaged again.
    let _ = std::fs::remove_dir_all(folder);
}

impl DerivedFiles for DerivedFolders {
    fn find_files(&self, key: &ContentHash) -> Option<PathBuf> {
        let folder = self.folder(key);
        if !folder.is_dir() {
            return None;
        }
        match self.check(&folder, true) {
            Ok(_) => Some(folder),
            Err(problem) => {
                remove_damaged(&folder, &problem);
                None
            }
        }
    }

    fn hold_files(&self, key: &ContentHash) -> Option<Hold> {
        let path = Self::used(&self.folder(key));
        let manifest = File::open(&path).ok()?;
        manifest.lock_shared().ok()?;
        // It may have been removed before the lock was there, and made again.
        let (held, found) = (manifest.metadata().ok()?, path.symlink_metadata().ok()?);
        let is_same = (held.dev(), held.ino()) == (found.dev(), found.ino());
        is_same.then(|| Box::new(manifest) as Hold)
    }

    fn remove_files(&self, key: &ContentHash) {
        remove(&self.folder(key));
    }

    fn make_files(&self, key: &ContentHash, fill: &mut dyn FnMut(&Path) -> Result<()>) -> Result<PathBuf> {
        let io = |error: std::io::Error| Error::io("cannot write derived files", &error).in_file(&self.root);
        // One process fills the folder; the others wait for it.
        let path = self.root.join(format!(".lock-{key}"));
        let lock = File::create(&path).map_err(io)?;
        lock_file(&lock, &format!("which writes files for an engine and has locked {}", path.display()), &mut || true)
            .map_err(io)?;
        if let Some(folder) = self.find_files(key) {
            return Ok(folder);
        }
        let temporary = Temporary::new(&self.root).map_err(io)?;
        fill(&temporary.path)?;
        let mut manifest = String::new();
        let names = names_below(&temporary.path)
            .ok_or_else(|| Error::invalid("a name that a manifest cannot have").in_file(&temporary.path))?;
        let bytes = names.iter().map(|name| LINE_BYTES + name.len()).sum::<usize>() + LINE_BYTES;
        if bytes as u64 > MANIFEST_BYTES_MAX {
            let message = format!("{} files, whose names have more than {MANIFEST_BYTES_MAX} bytes", names.len());
            return Err(Error::unsupported(message).in_file(&temporary.path));
        }
        for name in &names {
            let path = temporary.path.join(name);
            File::open(&path).and_then(|file| file.sync_all()).map_err(io)?;
            manifest.push_str(&format!("{} {name}\n", hash_of(&MappedFile::open(&path)?, &path)?));
        }
        let hash = ContentHash::of(manifest.as_bytes());
        manifest.push_str(&format!("{hash}\n"));
        let write = || {
            let mut file = File::create(temporary.path.join(MANIFEST))?;
            file.write_all(manifest.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&temporary.path, self.folder(key))?;
            File::open(&self.root)?.sync_all()
        };
        write().map_err(io)?;
        // Notes that the files are verified, without hashing them again.
        let folder = self.folder(key);
        for name in names {
            if let Ok(file) = MappedFile::open(&folder.join(&name)) {
                self.verified.insert(&noted(&folder, &name), file.stamp());
            }
        }
        Ok(folder)
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

/// The files in a folder and in the folders inside of it.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![(folder.to_path_buf(), 0)]);
    while let Some((inner, depth)) = folders.pop() {
        for path in entries(&inner) {
            let is_folder = path.symlink_metadata().is_ok_and(|found| found.is_dir());
            if is_folder && depth < DEPTH_MAX { folders.push((path, depth + 1)) } else { found.push(path) }
        }
    }
    found
}

/// The names of the files below a folder, relative to it, without the manifest. `None` if one is not UTF-8 or has a line break.
fn names_below(folder: &Path) -> Option<BTreeSet<String>> {
    let name = |path: PathBuf| {
        let name = path.strip_prefix(folder).ok()?.to_str()?;
        (!name.contains('\n')).then(|| name.to_owned())
    };
    let mut names: BTreeSet<String> = files_below(folder).into_iter().map(name).collect::<Option<_>>()?;
    names.remove(MANIFEST);
    Some(names)
}

fn hash_of(file: &MappedFile, path: &Path) -> Result<String> {
    let hash = file.content_hash().map_err(|error| error.in_file(path))?;
    Ok(hash.to_string())
}
