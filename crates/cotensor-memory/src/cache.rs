//! Weights kept beyond a process: packs in a private folder, mapped by whoever wants them.

use crate::mapped_file::{MappedFile, WritableFile};
use crate::pack::{Entry, parse_table, plan, write_table};
use cotensor_core::{ContentCache, ContentHash, Error, ErrorKind, Located, PackMut, Result, Segment};
use std::collections::HashMap;
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

/// The most bytes of a note.
const NOTE_BYTES_MAX: usize = 1 << 20;
/// Temporary files of writers that died are removed after this long.
const ABANDONED_AFTER: Duration = Duration::from_secs(24 * 3600);

/// A folder of packs that this user's processes share.
pub struct PackCache {
    folder: PathBuf,
    state: Mutex<State>,
    next: AtomicU64,
}

#[derive(Default)]
struct State {
    /// Content to pack file and bytes.
    index: HashMap<ContentHash, (Arc<Path>, Range<usize>)>,
    /// Packs that were read, and when a process still maps them, the mapping.
    packs: HashMap<Arc<Path>, Weak<MappedFile>>,
    problems: Vec<Error>,
}

impl PackCache {
    /// Opens the cache in `folder`, making it (mode 0700) if it is not there.
    ///
    /// # Errors
    /// `Refused` when the folder belongs to somebody else or others may enter it, `Io`.
    pub fn open(folder: &Path) -> Result<Self> {
        let io = |error: std::io::Error| Error::io("cannot use this folder as a cache", &error).in_file(folder);
        for part in [folder.to_path_buf(), folder.join("packs"), folder.join("notes")] {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&part).map_err(io)?;
            let found = std::fs::symlink_metadata(&part).map_err(io)?;
            let private = found.mode() & 0o077 == 0 && found.uid() == rustix::process::geteuid().as_raw();
            if part != folder && !(found.is_dir() && private) {
                return Err(
                    Error::new(ErrorKind::Refused, "not a folder of this user alone (mode 0700)").in_file(&part)
                );
            }
        }
        let cache = Self { folder: folder.to_path_buf(), state: Mutex::default(), next: AtomicU64::new(0) };
        cache.remove_abandoned();
        cache.scan(&mut cache.lock());
        Ok(cache)
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

    /// Packs that were ignored, and why.
    pub fn problems(&self) -> Vec<Error> {
        self.lock().problems.clone()
    }

    /// Number of packs and their bytes on disk.
    pub fn usage(&self) -> (usize, u64) {
        let sizes: Vec<u64> =
            pack_files(&self.packs()).filter_map(|path| std::fs::metadata(path).ok()).map(|file| file.len()).collect();
        (sizes.len(), sizes.iter().sum())
    }

    /// Hashes every content again; returns how many are as they should be.
    ///
    /// # Errors
    /// `Corrupt` naming the pack and the content that is not.
    pub fn verify(&self) -> Result<usize> {
        let mut state = self.lock();
        self.scan(&mut state);
        let entries: Vec<_> =
            state.index.iter().map(|(hash, (pack, range))| (*hash, Arc::clone(pack), range.clone())).collect();
        for (hash, path, range) in &entries {
            let pack = map_pack(&mut state, path)?;
            let bytes = pack.bytes().and_then(|bytes| bytes.get(range.clone())).unwrap_or_default();
            if ContentHash::of(bytes) != *hash {
                return Err(Error::corrupt("the content does not have its hash")
                    .in_file(path)
                    .in_field(hash.to_string()));
            }
        }
        Ok(entries.len())
    }

    fn packs(&self) -> PathBuf {
        self.folder.join("packs")
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the tables of packs that are new. A damaged one is noted and left alone.
    fn scan(&self, state: &mut State) {
        for path in pack_files(&self.packs()) {
            let path: Arc<Path> = path.into();
            if state.packs.contains_key(&path) {
                continue;
            }
            let table = MappedFile::open(&path).and_then(|pack| parse_table(pack.bytes().unwrap_or_default()));
            match table {
                Ok(entries) => entries.into_iter().for_each(|Entry { hash, range }| {
                    state.index.entry(hash).or_insert((Arc::clone(&path), range));
                }),
                Err(error) => state.problems.push(error.in_file(&path)),
            }
            state.packs.insert(path, Weak::new());
        }
    }

    fn remove_abandoned(&self) {
        let now = SystemTime::now();
        let entries =
            [self.packs(), self.folder.join("notes")].into_iter().filter_map(|folder| std::fs::read_dir(folder).ok());
        for entry in entries.flatten().flatten() {
            let old = entry.metadata().and_then(|file| file.modified()).ok().and_then(|at| now.duration_since(at).ok());
            if entry.file_name().to_string_lossy().starts_with(".tmp-") && old.is_some_and(|age| age > ABANDONED_AFTER)
            {
                // Somebody else may have been faster.
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    fn temporary(&self, folder: &str) -> PathBuf {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let nanos = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.subsec_nanos());
        self.folder.join(folder).join(format!(".tmp-{}-{number}-{nanos}", std::process::id()))
    }
}

fn pack_files(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.extension().is_some_and(|extension| extension == "pack"))
}

/// The pack's mapping: one for the process, for as long as somebody uses it.
fn map_pack(state: &mut State, path: &Arc<Path>) -> Result<Arc<MappedFile>> {
    if let Some(pack) = state.packs.get(path).and_then(Weak::upgrade) {
        return Ok(pack);
    }
    let pack = Arc::new(MappedFile::open(path)?);
    // The file may be another one than the one that was read: its table counts.
    parse_table(pack.bytes().unwrap_or_default()).map_err(|error| error.in_file(path))?;
    state.packs.insert(Arc::clone(path), Arc::downgrade(&pack));
    Ok(pack)
}

impl ContentCache for PackCache {
    fn find(&self, hash: &ContentHash) -> Option<Located> {
        let mut state = self.lock();
        if !state.index.contains_key(hash) {
            self.scan(&mut state);
        }
        let (path, range) = state.index.get(hash)?.clone();
        match map_pack(&mut state, &path) {
            Ok(pack) if range.end <= pack.len() => Some((pack, range)),
            gone => {
                // Removed or damaged since: its contents are made again.
                state.problems.extend(gone.err());
                state.index.retain(|_, (pack, _)| *pack != path);
                state.packs.remove(&path);
                None
            }
        }
    }

    fn begin(&self, entries: &[(ContentHash, usize)]) -> Result<Box<dyn PackMut>> {
        let (entries, len) = plan(entries)?;
        let mut hasher = cotensor_core::Hasher::new("cotensor pack v1");
        for entry in &entries {
            hasher.field(entry.hash.as_bytes());
        }
        let temporary = self.temporary("packs");
        let target = self.packs().join(format!("{}.pack", hasher.finish()));
        let file = WritableFile::create(&temporary, len)?;
        Ok(Box::new(NewPack { file: Some(file), entries, temporary, target }))
    }

    fn recall(&self, key: &ContentHash) -> Option<Vec<u8>> {
        let path = self.folder.join("notes").join(key.to_string());
        let small = std::fs::metadata(&path).is_ok_and(|file| file.len() <= NOTE_BYTES_MAX as u64);
        small.then(|| std::fs::read(&path).ok()).flatten()
    }

    fn remember(&self, key: &ContentHash, note: &[u8]) -> Result<()> {
        if note.len() > NOTE_BYTES_MAX {
            return Err(Error::invalid(format!("a note of {} bytes; at most {NOTE_BYTES_MAX}", note.len())));
        }
        let temporary = self.temporary("notes");
        let written = std::fs::write(&temporary, note)
            .and_then(|()| std::fs::rename(&temporary, self.folder.join("notes").join(key.to_string())));
        written.map_err(|error| {
            // The error that matters is the first.
            let _ = std::fs::remove_file(&temporary);
            Error::io("cannot keep a note", &error).in_file(&temporary)
        })
    }
}

struct NewPack {
    file: Option<WritableFile>,
    entries: Vec<Entry>,
    temporary: PathBuf,
    target: PathBuf,
}

impl PackMut for NewPack {
    fn entry_mut(&mut self, index: usize) -> &mut [u8] {
        let range = self.entries[index].range.clone();
        self.file.as_mut().map(|file| &mut file.bytes_mut()[range]).unwrap_or_default()
    }

    fn commit(mut self: Box<Self>) -> Result<Vec<Located>> {
        let mut file = self.file.take().ok_or_else(|| Error::new(ErrorKind::Conflict, "committed already"))?;
        write_table(&self.entries, file.bytes_mut());
        let segment = cotensor_core::SegmentMut::freeze(Box::new(file))?;
        // Whoever writes the same contents writes the same file: the last rename wins and nothing is lost.
        std::fs::rename(&self.temporary, &self.target)
            .map_err(|error| Error::io("cannot keep a pack", &error).in_file(&self.target))?;
        Ok(self.entries.iter().map(|entry| (Arc::clone(&segment), entry.range.clone())).collect())
    }
}

impl Drop for NewPack {
    fn drop(&mut self) {
        // Gone already after a commit.
        let _ = std::fs::remove_file(&self.temporary);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(cache: &PackCache, contents: &[&[u8]]) -> Vec<ContentHash> {
        let entries: Vec<_> = contents.iter().map(|bytes| (ContentHash::of(bytes), bytes.len())).collect();
        let mut pack = cache.begin(&entries).unwrap();
        for (index, bytes) in contents.iter().enumerate() {
            pack.entry_mut(index).copy_from_slice(bytes);
        }
        for ((segment, range), bytes) in pack.commit().unwrap().into_iter().zip(contents) {
            assert_eq!(&segment.bytes().unwrap()[range], *bytes);
        }
        entries.into_iter().map(|(hash, _)| hash).collect()
    }

    #[test]
    fn what_one_cache_keeps_another_finds() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (PackCache::open(folder.path()).unwrap(), PackCache::open(folder.path()).unwrap());
        let hashes = put(&one, &[b"first", b"", &[9; 5000]]);
        for (hash, bytes) in hashes.iter().zip([&b"first"[..], b"", &[9; 5000]]) {
            let (segment, range) = other.find(hash).unwrap();
            assert_eq!(&segment.bytes().unwrap()[range.clone()], bytes);
            assert_eq!(range.start % cotensor_core::ALIGNMENT, 0);
        }
        let (a, b) = (other.find(&hashes[0]).unwrap().0, other.find(&hashes[2]).unwrap().0);
        assert!(Arc::ptr_eq(&a, &b), "one mapping for a pack");
        assert!(other.find(&ContentHash::of(b"unknown")).is_none());
        assert_eq!((one.verify().unwrap(), one.usage().0), (3, 1));
    }

    #[test]
    fn an_abandoned_pack_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let cache = PackCache::open(folder.path()).unwrap();
        drop(cache.begin(&[(ContentHash::of(b"x"), 1)]).unwrap());
        assert_eq!(std::fs::read_dir(folder.path().join("packs")).unwrap().count(), 0);
    }

    #[test]
    fn damaged_and_removed_packs_are_ignored_with_a_reason() {
        let folder = tempfile::tempdir().unwrap();
        let cache = PackCache::open(folder.path()).unwrap();
        let hash = put(&cache, &[b"content"])[0];
        std::fs::write(folder.path().join("packs/bad.pack"), b"not a pack at all").unwrap();
        let fresh = PackCache::open(folder.path()).unwrap();
        assert!(fresh.problems()[0].to_string().contains("bad.pack"));
        assert!(fresh.find(&hash).is_some());
        for path in pack_files(&folder.path().join("packs")) {
            std::fs::remove_file(path).unwrap();
        }
        assert!(fresh.find(&hash).is_none());
    }

    #[test]
    fn notes_are_kept_and_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let cache = PackCache::open(folder.path()).unwrap();
        let key = ContentHash::of(b"key");
        assert_eq!(cache.recall(&key), None);
        cache.remember(&key, b"one").unwrap();
        cache.remember(&key, b"two").unwrap();
        assert_eq!(PackCache::open(folder.path()).unwrap().recall(&key).unwrap(), b"two");
        assert!(cache.remember(&key, &vec![0; NOTE_BYTES_MAX + 1]).is_err());
    }

    #[test]
    fn a_folder_that_others_may_enter_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        PackCache::open(folder.path()).unwrap();
        std::fs::set_permissions(folder.path().join("packs"), std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(PackCache::open(folder.path()).err().unwrap().kind(), ErrorKind::Refused);
    }
}
