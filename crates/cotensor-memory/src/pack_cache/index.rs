//! The blobs in the packs of a folder, and the packs that this process maps.

use super::format::{PackEntry, parse_pack_table};
use super::verified::{VerifiedPacks, damaged};
use crate::host::MappedFile;
use cotensor_core::{BlobLocation, ContentHash, Error, FileStamp, Result, Segment};
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

/// The most replaced packs that one lookup tries.
const ATTEMPTS_MAX: usize = 8;

/// The index of a folder in which other processes add, replace and remove packs at any time.
///
/// - **P1**: the locations of a pack, and its mapping if one exists, are those of the file with the pack's `id`. A file
///   with another id is read again.
pub(super) struct PackIndex {
    folder: PathBuf,
    /// All locations of a blob: several packs may have it.
    blobs: HashMap<ContentHash, Vec<Location>>,
    packs: HashMap<Arc<Path>, KnownPack>,
    verified: VerifiedPacks,
    /// The errors of removed packs.
    removed: Vec<Error>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Location {
    pack: Arc<Path>,
    range: Range<usize>,
}

struct KnownPack {
    stamp: FileStamp,
    mapping: Weak<MappedFile>,
    /// Whether the blobs match their hashes.
    verified: bool,
    /// The reason to ignore the pack.
    problem: Option<Error>,
}

impl PackIndex {
    /// An empty index of `folder`; [`scan`](Self::scan) reads the packs.
    pub(super) fn new(folder: PathBuf, verified: VerifiedPacks) -> Self {
        Self { folder, blobs: HashMap::new(), packs: HashMap::new(), verified, removed: Vec::new() }
    }

    /// Reads the tables of new and changed packs, and drops removed packs from the index. A damaged pack is ignored
    /// until its file changes.
    pub(super) fn scan(&mut self) {
        let found: HashMap<Arc<Path>, FileStamp> =
            pack_files(&self.folder).map(|(path, id)| (path.into(), id)).collect();
        let removed =
            |path: &Arc<Path>, pack: &KnownPack| !found.contains_key(path) && pack.mapping.strong_count() == 0;
        let removed = self.packs.iter().filter(|(path, pack)| removed(path, pack)).map(|(path, _)| Arc::clone(path));
        for path in removed.collect::<Vec<_>>() {
            self.forget(&path);
        }
        for (path, stamp) in found {
            if self.packs.get(&path).is_none_or(|pack| pack.stamp != stamp)
                && let Err(problem) = self.read(&path)
            {
                let pack = KnownPack { stamp, mapping: Weak::new(), verified: false, problem: Some(problem) };
                self.packs.insert(path, pack);
            }
        }
    }

    /// The bytes of a blob in a pack, which is mapped once in this process.
    pub(super) fn find(&mut self, hash: &ContentHash) -> Option<BlobLocation> {
        self.look_up(hash).or_else(|| {
            self.scan();
            self.look_up(hash)
        })
    }

    fn look_up(&mut self, hash: &ContentHash) -> Option<BlobLocation> {
        for _ in 0..ATTEMPTS_MAX {
            let location = self.blobs.get(hash)?.first()?.clone();
            let mapping = self.verified_mapping(&location.pack);
            // The file may have been replaced by another pack before it was mapped.
            if let Some(mapping) = mapping
                && self.blobs.get(hash).is_some_and(|locations| locations.contains(&location))
            {
                return Some((mapping, location.range));
            }
        }
        None
    }

    /// The bytes of `entries` in the pack at `path`, if it is undamaged and has all of them.
    pub(super) fn find_in(&mut self, path: &Arc<Path>, entries: &[PackEntry]) -> Option<Vec<BlobLocation>> {
        let mapping = self.verified_mapping(path)?;
        let locate = |entry: &PackEntry| {
            let same = |location: &&Location| location.pack == *path && location.range.len() == entry.range.len();
            let location = self.blobs.get(&entry.hash)?.iter().find(same)?;
            Some((Arc::clone(&mapping) as Arc<dyn Segment>, location.range.clone()))
        };
        entries.iter().map(locate).collect()
    }

    /// Adds a pack that this process has just written to `path`. It needs no verification.
    pub(super) fn add_written(&mut self, path: &Arc<Path>, mapping: &Arc<MappedFile>, entries: &[PackEntry]) {
        self.add(path, mapping, entries);
        self.note_verified(path, mapping.stamp());
    }

    /// Adds the pack at `path`, in place of an earlier one.
    fn add(&mut self, path: &Arc<Path>, mapping: &Arc<MappedFile>, entries: &[PackEntry]) {
        if let Some(known) = self.packs.get_mut(path)
            && known.stamp == mapping.stamp()
            && known.problem.is_none()
        {
            known.mapping = Arc::downgrade(mapping);
            return;
        }
        self.forget(path);
        for PackEntry { hash, range } in entries {
            self.blobs.entry(*hash).or_default().push(Location { pack: Arc::clone(path), range: range.clone() });
        }
        let pack =
            KnownPack { stamp: mapping.stamp(), mapping: Arc::downgrade(mapping), verified: false, problem: None };
        self.packs.insert(Arc::clone(path), pack);
    }

    /// The errors of ignored and of removed packs.
    pub(super) fn problems(&self) -> Vec<Error> {
        self.packs.values().filter_map(|pack| pack.problem.clone()).chain(self.removed.iter().cloned()).collect()
    }

    /// Hashes the blobs of every pack and removes damaged packs. Returns the number of undamaged blobs and the errors
    /// of the removed packs.
    pub(super) fn verify_all(&mut self) -> (usize, Vec<Error>) {
        self.scan();
        let paths: Vec<_> = self.packs.keys().cloned().collect();
        let (mut intact, mut problems) = (0, Vec::new());
        for path in paths {
            if let Some(problem) = self.packs.get(&path).and_then(|pack| pack.problem.clone()) {
                self.remove(&path, problem.clone());
                problems.push(problem);
                continue;
            }
            // A pack that was removed meanwhile is not damaged.
            let Some(mapping) = self.mapping(&path) else { continue };
            match self.verify(&path, &mapping) {
                Ok(count) => intact += count,
                Err(problem) => problems.push(problem),
            }
        }
        (intact, problems)
    }

    /// The mapping of a pack. A pack that was not verified since the boot is verified first, and removed if it is
    /// damaged.
    fn verified_mapping(&mut self, path: &Arc<Path>) -> Option<Arc<MappedFile>> {
        let mapping = self.mapping(path)?;
        if self.packs.get(path).is_some_and(|pack| pack.verified) {
            return Some(mapping);
        }
        if self.verified.contains(path, mapping.stamp()) {
            self.note_verified_here(path);
            return Some(mapping);
        }
        self.verify(path, &mapping).ok().map(|_| mapping)
    }

    /// Hashes the blobs of a pack and returns their number.
    fn verify(&mut self, path: &Arc<Path>, mapping: &MappedFile) -> Result<usize> {
        let bytes = mapping.bytes().unwrap_or_default();
        let entries = parse_pack_table(bytes).map_err(|error| error.in_file(&**path))?;
        if let Some(entry) = damaged(bytes, &entries) {
            let problem = Error::corrupt("a blob does not match its hash");
            let problem = problem.in_file(&**path).in_field(entry.hash.to_string());
            self.remove(path, problem.clone());
            return Err(problem);
        }
        self.note_verified(path, mapping.stamp());
        Ok(entries.len())
    }

    fn note_verified(&mut self, path: &Arc<Path>, stamp: FileStamp) {
        self.verified.insert(path, stamp);
        self.note_verified_here(path);
    }

    fn note_verified_here(&mut self, path: &Arc<Path>) {
        if let Some(pack) = self.packs.get_mut(path) {
            pack.verified = true;
        }
    }

    /// Removes a damaged pack. Processes that map it keep their mappings, and the next process writes the pack again.
    fn remove(&mut self, path: &Arc<Path>, problem: Error) {
        self.forget(path);
        // If the file cannot be removed, the next process finds the damage again.
        let _ = std::fs::remove_file(path);
        self.removed.push(problem);
    }

    /// The mapping of a pack: the existing one or a new one. A pack that cannot be mapped any more is dropped from the
    /// index.
    fn mapping(&mut self, path: &Arc<Path>) -> Option<Arc<MappedFile>> {
        if let Some(mapping) = self.packs.get(path).and_then(|pack| pack.mapping.upgrade()) {
            return Some(mapping);
        }
        self.read(path).inspect_err(|_| self.forget(path)).ok()
    }

    /// Maps a pack and adds its current blobs.
    fn read(&mut self, path: &Arc<Path>) -> Result<Arc<MappedFile>> {
        let mapping = Arc::new(MappedFile::open(path)?);
        let entries = parse_pack_table(mapping.bytes().unwrap_or_default()).map_err(|error| error.in_file(path))?;
        self.add(path, &mapping, &entries);
        Ok(mapping)
    }

    fn forget(&mut self, path: &Arc<Path>) {
        if self.packs.remove(path).is_some() {
            self.blobs.retain(|_, locations| {
                locations.retain(|location| location.pack != *path);
                !locations.is_empty()
            });
        }
    }
}

/// The files of the packs in `folder`.
pub(super) fn pack_files(folder: &Path) -> impl Iterator<Item = (PathBuf, FileStamp)> + use<> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let packs = entries.filter(|path| path.extension().is_some_and(|extension| extension == "pack"));
    packs.filter_map(|path| std::fs::symlink_metadata(&path).ok().map(|found| (path, FileStamp::of(&found))))
}
