//! What the packs of a folder hold, and which of them this process maps.

use super::format::{PackEntry, parse_pack_table};
use super::verified::{Verified, damaged};
use crate::host::{FileId, MappedFile};
use cotensor_core::{ContentHash, Error, Located, Result, Segment};
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

/// How often one search may find a pack replaced under its eyes.
const REPLACED_MAX: usize = 8;

/// Other processes add, replace and remove packs at any time. Invariant I1: the places of a pack, and its mapping if one
/// lives, are those of the file whose `id` is kept; whatever shows another id makes the index read that pack again.
pub(super) struct PackIndex {
    folder: PathBuf,
    /// Every place of a content: when one pack goes, another may have it still.
    contents: HashMap<ContentHash, Vec<Place>>,
    packs: HashMap<Arc<Path>, Pack>,
    verified: Verified,
    /// Why packs were removed.
    removed: Vec<Error>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    pack: Arc<Path>,
    range: Range<usize>,
}

struct Pack {
    id: FileId,
    mapping: Weak<MappedFile>,
    /// Its contents have their hashes.
    verified: bool,
    problem: Option<Error>,
}

impl PackIndex {
    /// Of the packs in `folder`, none of which is read yet.
    pub(super) fn new(folder: PathBuf, verified: Verified) -> Self {
        Self { folder, contents: HashMap::new(), packs: HashMap::new(), verified, removed: Vec::new() }
    }

    /// Reads the tables of packs that are new or changed, and forgets those that went.
    /// A damaged one is noted and left alone until it changes.
    pub(super) fn scan(&mut self) {
        let found: HashMap<Arc<Path>, FileId> = pack_files(&self.folder).map(|(path, id)| (path.into(), id)).collect();
        let gone = |path: &Arc<Path>, pack: &Pack| !found.contains_key(path) && pack.mapping.strong_count() == 0;
        let gone: Vec<_> = self.packs.iter().filter(|(path, pack)| gone(path, pack)).map(|(path, _)| path).collect();
        for path in gone.into_iter().cloned().collect::<Vec<_>>() {
            self.forget(&path);
        }
        for (path, id) in found {
            if self.packs.get(&path).is_none_or(|pack| pack.id != id)
                && let Err(problem) = self.read(&path)
            {
                let pack = Pack { id, mapping: Weak::new(), verified: false, problem: Some(problem) };
                self.packs.insert(path, pack);
            }
        }
    }

    /// The content's bytes in some pack, mapped once for the process.
    pub(super) fn find(&mut self, hash: &ContentHash) -> Option<Located> {
        self.look_up(hash).or_else(|| {
            self.scan();
            self.look_up(hash)
        })
    }

    fn look_up(&mut self, hash: &ContentHash) -> Option<Located> {
        for _ in 0..REPLACED_MAX {
            let place = self.contents.get(hash)?.first()?.clone();
            let mapping = self.whole(&place.pack);
            // Mapping may have shown that the pack is another one by now.
            if let Some(mapping) = mapping
                && self.contents.get(hash).is_some_and(|places| places.contains(&place))
            {
                return Some((mapping, place.range));
            }
        }
        None
    }

    /// All of `entries` in the pack at `path`, if it is whole and has them.
    pub(super) fn find_in(&mut self, path: &Arc<Path>, entries: &[PackEntry]) -> Option<Vec<Located>> {
        let mapping = self.whole(path)?;
        let place = |entry: &PackEntry| {
            let places = self.contents.get(&entry.hash)?;
            let place = places.iter().find(|place| place.pack == *path && place.range.len() == entry.range.len())?;
            Some((Arc::clone(&mapping) as Arc<dyn Segment>, place.range.clone()))
        };
        entries.iter().map(place).collect()
    }

    /// Lists a pack that this process has just written at `path`: its contents need no verification.
    pub(super) fn adopt_written(&mut self, path: &Arc<Path>, mapping: &Arc<MappedFile>, entries: &[PackEntry]) {
        self.adopt(path, mapping, entries);
        self.note_verified(path, mapping.id());
    }

    /// Lists the pack at `path`, in place of any other that was there.
    fn adopt(&mut self, path: &Arc<Path>, mapping: &Arc<MappedFile>, entries: &[PackEntry]) {
        if let Some(known) = self.packs.get_mut(path)
            && known.id == mapping.id()
            && known.problem.is_none()
        {
            known.mapping = Arc::downgrade(mapping);
            return;
        }
        self.forget(path);
        for PackEntry { hash, range } in entries {
            self.contents.entry(*hash).or_default().push(Place { pack: Arc::clone(path), range: range.clone() });
        }
        let pack = Pack { id: mapping.id(), mapping: Arc::downgrade(mapping), verified: false, problem: None };
        self.packs.insert(Arc::clone(path), pack);
    }

    /// Why packs are ignored, or were removed.
    pub(super) fn problems(&self) -> Vec<Error> {
        self.packs.values().filter_map(|pack| pack.problem.clone()).chain(self.removed.iter().cloned()).collect()
    }

    /// Hashes the contents of every pack again and removes damaged packs. The number of contents that have their hashes, and
    /// why packs were removed.
    pub(super) fn verify_all(&mut self) -> (usize, Vec<Error>) {
        self.scan();
        let paths: Vec<_> = self.packs.keys().cloned().collect();
        let (mut right, mut wrong) = (0, Vec::new());
        for path in paths {
            if let Some(problem) = self.packs.get(&path).and_then(|pack| pack.problem.clone()) {
                self.remove(&path, problem.clone());
                wrong.push(problem);
                continue;
            }
            // A pack that was removed since is not damaged.
            let Some(mapping) = self.mapping(&path) else { continue };
            match self.verify(&path, &mapping) {
                Ok(count) => right += count,
                Err(problem) => wrong.push(problem),
            }
        }
        (right, wrong)
    }

    /// The pack's mapping. A pack whose contents were not verified since the machine started is verified first; a damaged one
    /// is removed.
    fn whole(&mut self, path: &Arc<Path>) -> Option<Arc<MappedFile>> {
        let mapping = self.mapping(path)?;
        if self.packs.get(path).is_some_and(|pack| pack.verified) {
            return Some(mapping);
        }
        if self.verified.contains(path, mapping.id()) {
            self.note_verified_here(path);
            return Some(mapping);
        }
        self.verify(path, &mapping).ok().map(|_| mapping)
    }

    /// Hashes the contents of a pack and counts them.
    fn verify(&mut self, path: &Arc<Path>, mapping: &MappedFile) -> Result<usize> {
        let bytes = mapping.bytes().unwrap_or_default();
        let entries = parse_pack_table(bytes).map_err(|error| error.in_file(&**path))?;
        if let Some(entry) = damaged(bytes, &entries) {
            let problem = Error::corrupt("the content does not have its hash");
            let problem = problem.in_file(&**path).in_field(entry.hash.to_string());
            self.remove(path, problem.clone());
            return Err(problem);
        }
        self.note_verified(path, mapping.id());
        Ok(entries.len())
    }

    fn note_verified(&mut self, path: &Arc<Path>, id: FileId) {
        self.verified.insert(path, id);
        self.note_verified_here(path);
    }

    fn note_verified_here(&mut self, path: &Arc<Path>) {
        if let Some(pack) = self.packs.get_mut(path) {
            pack.verified = true;
        }
    }

    /// Removes a damaged pack. Processes that map it keep their mappings; the next process makes the pack again.
    fn remove(&mut self, path: &Arc<Path>, problem: Error) {
        self.forget(path);
        // Where the file cannot be removed, the next process finds the damage again.
        let _ = std::fs::remove_file(path);
        self.removed.push(problem);
    }

    /// The pack's mapping: the one that lives, or a new one. A pack that cannot be mapped any more is forgotten.
    fn mapping(&mut self, path: &Arc<Path>) -> Option<Arc<MappedFile>> {
        if let Some(mapping) = self.packs.get(path).and_then(|pack| pack.mapping.upgrade()) {
            return Some(mapping);
        }
        self.read(path).inspect_err(|_| self.forget(path)).ok()
    }

    /// Maps a pack and lists what it holds now.
    fn read(&mut self, path: &Arc<Path>) -> Result<Arc<MappedFile>> {
        let mapping = Arc::new(MappedFile::open(path)?);
        let entries = parse_pack_table(mapping.bytes().unwrap_or_default()).map_err(|error| error.in_file(path))?;
        self.adopt(path, &mapping, &entries);
        Ok(mapping)
    }

    fn forget(&mut self, path: &Arc<Path>) {
        if self.packs.remove(path).is_some() {
            self.contents.retain(|_, places| {
                places.retain(|place| place.pack != *path);
                !places.is_empty()
            });
        }
    }
}

/// The packs of `folder`.
pub(super) fn pack_files(folder: &Path) -> impl Iterator<Item = (PathBuf, FileId)> + use<> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let packs = entries.filter(|path| path.extension().is_some_and(|extension| extension == "pack"));
    packs.filter_map(|path| std::fs::symlink_metadata(&path).ok().map(|found| (path, FileId::of(&found))))
}
