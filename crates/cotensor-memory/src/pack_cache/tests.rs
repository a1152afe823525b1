use super::folder::UNLOCKED_AFTER;
use super::format::{plan, write_table};
use super::index::pack_files;
use super::notes::{NOTE_BYTES_MAX, Notes};
use super::verified::VerifiedPacks;
use super::{PackCache, Verification};
use crate::process::range_at;
use cotensor_core::{BlobCache, ContentHash, DerivedFiles, Error, ErrorKind, FileStamp, PackMut, Result};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// A pack with `contents`, written but not committed.
fn begin(cache: &PackCache, contents: &[&[u8]]) -> Box<dyn PackMut> {
    let entries: Vec<_> = contents.iter().map(|bytes| (ContentHash::of(bytes), bytes.len())).collect();
    let mut pack = cache.begin(&entries).unwrap();
    for (index, bytes) in contents.iter().enumerate() {
        pack.entry_mut(index).copy_from_slice(bytes);
    }
    pack
}

fn put(cache: &PackCache, contents: &[&[u8]]) -> Vec<ContentHash> {
    for ((segment, range), bytes) in begin(cache, contents).commit().unwrap().into_iter().zip(contents) {
        assert_eq!(&segment.bytes().unwrap()[range], *bytes);
    }
    contents.iter().map(|bytes| ContentHash::of(bytes)).collect()
}

fn found(cache: &PackCache, hash: &ContentHash) -> Option<Vec<u8>> {
    cache.find(hash).map(|(segment, range)| segment.bytes().unwrap()[range].to_vec())
}

fn only_pack(folder: &Path) -> PathBuf {
    let packs: Vec<_> = pack_files(&folder.join("packs")).map(|(path, _)| path).collect();
    assert_eq!(packs.len(), 1, "{packs:?}");
    packs[0].clone()
}

#[test]
fn blobs_of_one_cache_are_found_by_another() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (PackCache::open(folder.path()).unwrap(), PackCache::open(folder.path()).unwrap());
    let hashes = put(&one, &[b"first", b"", &[9; 5000]]);
    for (hash, bytes) in hashes.iter().zip([&b"first"[..], b"", &[9; 5000]]) {
        let (segment, range) = other.find(hash).unwrap();
        assert_eq!(&segment.bytes().unwrap()[range.clone()], bytes);
        assert_eq!(range.start % cotensor_core::ALIGNMENT, 0);
    }
    let (a, b) = (other.find(&hashes[0]).unwrap().0, other.find(&hashes[2]).unwrap().0);
    assert!(Arc::ptr_eq(&a, &b), "one mapping of a pack");
    assert!(other.find(&ContentHash::of(b"unknown")).is_none());
    let verified = one.verify();
    assert!(verified.blobs == 3 && verified.removed.is_empty() && one.usage().0 == 1);
}

#[test]
fn uncommitted_pack_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let cache = PackCache::open(folder.path()).unwrap();
    drop(cache.begin(&[(ContentHash::of(b"x"), 1)]).unwrap());
    assert_eq!(std::fs::read_dir(folder.path().join("packs")).unwrap().count(), 0);
}

#[test]
fn opening_removes_files_of_ended_writers_only() {
    let folder = tempfile::tempdir().unwrap();
    let packs = folder.path().join("packs");
    let cache = PackCache::open(folder.path()).unwrap();
    let pack = cache.begin(&[(ContentHash::of(b"x"), 1)]).unwrap();
    std::fs::write(packs.join(".tmp-left"), b"half").unwrap();
    std::fs::write(packs.join(".tmp-new"), b"half").unwrap();
    let names = || {
        let entries = std::fs::read_dir(&packs).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        entries.collect::<Vec<_>>()
    };
    for name in names().iter().filter(|name| *name != ".tmp-new") {
        let old = SystemTime::now() - 2 * UNLOCKED_AFTER;
        std::fs::File::options().write(true).open(packs.join(name)).unwrap().set_modified(old).unwrap();
    }
    PackCache::open(folder.path()).unwrap();
    assert!(names().len() == 2 && !names().contains(&".tmp-left".to_owned()), "{:?}", names());
    pack.commit().unwrap();
}

#[test]
fn file_in_place_of_the_folder_is_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = PackCache::open(file.path()).err().unwrap();
    assert_eq!((error.kind(), error.file()), (ErrorKind::Refused, Some(file.path())), "{error}");
}

#[test]
fn damaged_packs_are_problems_and_removed_packs_are_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let cache = PackCache::open(folder.path()).unwrap();
    let hash = put(&cache, &[b"content"])[0];
    std::fs::write(folder.path().join("packs/bad.pack"), b"not a pack at all").unwrap();
    let fresh = PackCache::open(folder.path()).unwrap();
    assert!(fresh.problems()[0].to_string().contains("bad.pack"));
    assert!(fresh.find(&hash).is_some());
    for (path, _) in pack_files(&folder.path().join("packs")) {
        std::fs::remove_file(path).unwrap();
    }
    assert!(fresh.find(&hash).is_none());
}

#[test]
fn notes_outlive_the_cache_and_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let cache = PackCache::open(folder.path()).unwrap();
    let key = ContentHash::of(b"key");
    assert_eq!(cache.get_note(&key), None);
    cache.put_note(&key, b"one").unwrap();
    cache.put_note(&key, b"two").unwrap();
    assert_eq!(PackCache::open(folder.path()).unwrap().get_note(&key).unwrap(), b"two");
    assert!(cache.put_note(&key, &vec![0; NOTE_BYTES_MAX + 1]).is_err());
}

#[test]
fn folder_that_others_can_access_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    let set = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    PackCache::open(&cache).unwrap();
    assert_eq!(std::fs::metadata(&cache).unwrap().mode() & 0o777, 0o700);
    for (part, mode) in [("packs", 0o755), ("notes", 0o710), ("", 0o777), ("", 0o720)] {
        let part = cache.join(part);
        set(&part, mode);
        let refused = PackCache::open(&cache).err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::Refused);
        assert!(refused.to_string().contains(&format!("{mode:04o}")), "{refused}");
        set(&part, 0o700);
    }
    set(&cache, 0o755);
    PackCache::open(&cache).unwrap();
}

#[test]
fn first_of_two_writers_of_a_pack_serves_both() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (PackCache::open(folder.path()).unwrap(), PackCache::open(folder.path()).unwrap());
    let contents: [&[u8]; 2] = [&[1; 5000], b"two"];
    let (first, second) = (begin(&one, &contents), begin(&other, &contents));
    let first = first.commit().unwrap();
    let inode = std::fs::metadata(only_pack(folder.path())).unwrap().ino();
    let second = second.commit().unwrap();
    assert_eq!(std::fs::metadata(only_pack(folder.path())).unwrap().ino(), inode, "the file is not replaced");
    for located in [first, second] {
        for ((segment, range), bytes) in located.into_iter().zip(contents) {
            assert_eq!(&segment.bytes().unwrap()[range], bytes);
            assert_eq!(range_at(segment.bytes().unwrap().as_ptr()).unwrap().range.inode, inode);
        }
    }
    assert_eq!(std::fs::read_dir(folder.path().join("packs")).unwrap().count(), 1, "no temporary file is left");
}

#[test]
fn damaged_pack_is_replaced_and_found_again() {
    let folder = tempfile::tempdir().unwrap();
    let hash = put(&PackCache::open(folder.path()).unwrap(), &[b"content"])[0];
    std::fs::write(only_pack(folder.path()), b"not a pack at all").unwrap();
    let (cache, other) = (PackCache::open(folder.path()).unwrap(), PackCache::open(folder.path()).unwrap());
    assert_eq!((found(&cache, &hash), cache.problems().len()), (None, 1));
    put(&cache, &[b"content"]);
    for cache in [&cache, &other] {
        assert_eq!(found(cache, &hash).unwrap(), b"content");
        assert!(cache.problems().is_empty());
    }
}

#[test]
fn blob_in_two_packs_survives_the_removal_of_one() {
    let folder = tempfile::tempdir().unwrap();
    let cache = PackCache::open(folder.path()).unwrap();
    let hash = put(&cache, &[b"shared"])[0];
    let first = only_pack(folder.path());
    put(&cache, &[b"shared", b"more"]);
    let fresh = PackCache::open(folder.path()).unwrap();
    std::fs::remove_file(first).unwrap();
    for cache in [&cache, &fresh] {
        assert_eq!(found(cache, &hash).unwrap(), b"shared");
    }
    std::fs::remove_file(only_pack(folder.path())).unwrap();
    for cache in [&cache, &fresh] {
        assert_eq!(found(cache, &hash), None);
    }
}

#[test]
fn replaced_pack_is_read_by_its_own_table() {
    let folder = tempfile::tempdir().unwrap();
    let cache = PackCache::open(folder.path()).unwrap();
    let hashes = put(&cache, &[&[1; 100], &[2; 100]]);
    // The same blobs in the other order.
    let (entries, len) = plan(&[(hashes[1], 100), (hashes[0], 100)]).unwrap();
    let mut file = vec![0; len];
    write_table(&entries, &mut file);
    file[entries[0].range.clone()].fill(2);
    file[entries[1].range.clone()].fill(1);
    let other = folder.path().join("other");
    std::fs::write(&other, file).unwrap();
    std::fs::rename(&other, only_pack(folder.path())).unwrap();
    assert_eq!(found(&cache, &hashes[0]).unwrap(), [1; 100]);
    assert_eq!(found(&cache, &hashes[1]).unwrap(), [2; 100]);
}

/// Changes the last byte of the only pack.
fn damage(folder: &Path) -> PathBuf {
    let path = only_pack(folder);
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn verify_removes_a_pack_with_a_changed_byte() {
    let folder = tempfile::tempdir().unwrap();
    let hash = put(&PackCache::open(folder.path()).unwrap(), &[b"content"])[0];
    let path = damage(folder.path());
    let cache = PackCache::open(folder.path()).unwrap();
    let Verification { blobs, removed: wrong, .. } = cache.verify();
    assert_eq!((blobs, wrong.len(), path.exists()), (0, 1, false));
    assert_eq!((wrong[0].kind(), wrong[0].file()), (ErrorKind::Corrupt, Some(&*path)));
    assert_eq!(wrong[0].field(), Some(&*hash.to_string()));
    assert_eq!(cache.verify().removed.len(), 0);
}

#[test]
fn changed_pack_is_removed_and_can_be_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let (first, fresh) = (PackCache::open(folder.path()).unwrap(), PackCache::open(folder.path()).unwrap());
    let hash = put(&first, &[b"content"])[0];
    assert_eq!(found(&fresh, &hash).unwrap(), b"content");
    let path = damage(folder.path());
    let later = PackCache::open(folder.path()).unwrap();
    assert_eq!((found(&later, &hash), path.exists()), (None, false));
    assert!(later.problems()[0].to_string().contains("does not match its hash"));
    put(&later, &[b"content"]);
    assert_eq!(found(&PackCache::open(folder.path()).unwrap(), &hash).unwrap(), b"content");
}

#[test]
fn pack_is_verified_once_per_boot() {
    let folder = tempfile::tempdir().unwrap();
    let hash = put(&PackCache::open(folder.path()).unwrap(), &[b"content"])[0];
    let path = only_pack(folder.path());
    damage(folder.path());
    // The note of a process that verified this file: it is not hashed again.
    let notes = Notes::new(folder.path().join("notes"));
    let stamp = FileStamp::of(&std::fs::metadata(&path).unwrap());
    VerifiedPacks::new(notes.clone()).insert(&path, stamp);
    assert_ne!(found(&PackCache::open(folder.path()).unwrap(), &hash).unwrap(), b"content");
    // A damaged note is none.
    for note in notes.paths() {
        let mut bytes = std::fs::read(&note).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&note, bytes).unwrap();
    }
    assert_eq!(notes.verify_all().1.len(), 1);
    assert_eq!(found(&PackCache::open(folder.path()).unwrap(), &hash), None);
}

#[test]
fn changed_pack_with_its_old_times_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let hash = put(&PackCache::open(folder.path()).unwrap(), &[b"content"])[0];
    let path = only_pack(folder.path());
    let written = std::fs::metadata(&path).unwrap().modified().unwrap();
    damage(folder.path());
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(written).unwrap();
    assert_eq!(found(&PackCache::open(folder.path()).unwrap(), &hash), None);
}

/// Every way in which one byte of a derived folder can change or be lost is found, by `verify` and by the next use.
#[test]
fn damaged_derived_folder_is_removed_and_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let cache = PackCache::open(folder.path()).unwrap();
    let key = ContentHash::of(b"key");
    let mut fills = 0;
    let made = derive(&cache, &key, &mut fills).unwrap();
    let flip = |path: PathBuf, at: usize| {
        let (mut bytes, times) = (std::fs::read(&path).unwrap(), std::fs::metadata(&path).unwrap());
        bytes[at] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(times.modified().unwrap()).unwrap();
    };
    let manifest_len = std::fs::metadata(made.join("manifest")).unwrap().len() as usize;
    let mut damages: Vec<Box<dyn Fn()>> = vec![
        Box::new(|| flip(made.join("inner/a"), 0)),
        Box::new(|| flip(made.join("b"), 2)),
        Box::new(|| std::fs::write(made.join("manifest"), "").unwrap()),
        Box::new(|| std::fs::remove_file(made.join("manifest")).unwrap()),
        Box::new(|| std::fs::remove_file(made.join("b")).unwrap()),
        Box::new(|| std::fs::write(made.join("c"), "more").unwrap()),
        Box::new(|| std::fs::write(made.join("inner/b"), "more").unwrap()),
        Box::new(|| std::fs::rename(made.join("inner/a"), made.join("a")).unwrap()),
        Box::new(|| {
            std::fs::remove_file(made.join("b")).unwrap();
            std::os::unix::fs::symlink("inner/a", made.join("b")).unwrap();
        }),
    ];
    damages.extend((0..manifest_len).step_by(7).map(|at| {
        let manifest = made.join("manifest");
        Box::new(move || flip(manifest.clone(), at)) as Box<dyn Fn()>
    }));
    for (at, damage) in damages.iter().enumerate() {
        damage();
        let found = cache.verify();
        assert_eq!((found.files, found.removed.len(), made.exists()), (0, 1, false), "{at}: {:?}", found.removed);
        derive(&cache, &key, &mut fills).unwrap();
        let found = cache.verify();
        assert_eq!((found.files, found.removed.len()), (2, 0), "{at}");
        damage();
        assert_eq!(cache.find_files(&key), None, "{at}");
        derive(&cache, &key, &mut fills).unwrap();
    }
    assert_eq!(fills, 1 + 2 * damages.len());
}

#[test]
fn prune_removes_packs_unused_for_the_given_time() {
    let folder = tempfile::tempdir().unwrap();
    let cache = PackCache::open(folder.path()).unwrap();
    let old = put(&cache, &[b"old"])[0];
    let path = only_pack(folder.path());
    let long_ago = std::fs::FileTimes::new()
        .set_accessed(SystemTime::now() - Duration::from_secs(90 * 86_400))
        .set_modified(SystemTime::now() - Duration::from_secs(90 * 86_400));
    std::fs::File::options().write(true).open(&path).unwrap().set_times(long_ago).unwrap();
    let new = put(&cache, &[b"new"])[0];
    assert_eq!(cache.prune(Duration::from_secs(30 * 86_400)).unwrap().0, 1);
    assert!(!path.exists() && found(&cache, &old).is_none() && found(&cache, &new).is_some());
    let (count, bytes) = cache.prune(Duration::ZERO).unwrap();
    assert!(count == 1 && bytes > 0 && cache.usage() == (0, 0));
    assert_eq!(std::fs::read_dir(folder.path().join("notes")).unwrap().count(), 0);
}

#[test]
fn committed_pack_is_on_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let cache = PackCache::open(folder.path()).unwrap();
    let (segment, _) = begin(&cache, &[&[1; 1 << 20]]).commit().unwrap().pop().unwrap();
    let bytes = segment.bytes().unwrap();
    // Reading faults the pages in, so that the kernel counts them for this mapping.
    assert!(bytes.iter().map(|&byte| usize::from(byte)).sum::<usize>() > 1 << 20);
    let mapping = range_at(bytes.as_ptr()).unwrap();
    assert!(mapping.rss_bytes >= 1 << 20);
    let on_disk = rustix::fs::statfs(folder.path()).unwrap().f_type != 0x0102_1994;
    // A tmpfs has no disk, so its pages stay dirty.
    assert!(mapping.dirty_bytes == 0 || !on_disk, "{mapping:?}");
}

/// Makes a folder with two files, one in a folder of its own, and returns it; counts the calls that fill it.
fn derive(cache: &PackCache, key: &ContentHash, fills: &mut usize) -> Result<PathBuf> {
    cache.make_files(key, &mut |folder| {
        *fills += 1;
        std::fs::create_dir(folder.join("inner")).unwrap();
        std::fs::write(folder.join("inner/a"), [1; 5000]).unwrap();
        std::fs::write(folder.join("b"), b"two").unwrap();
        Ok(())
    })
}

fn derived_names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder.join("derived")).unwrap().map(|entry| entry.unwrap().file_name());
    entries.map(|name| name.into_string().unwrap()).filter(|name| !name.starts_with(".lock-")).collect()
}

#[test]
fn derived_files_are_made_once_and_damaged_ones_again() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (PackCache::open(folder.path()).unwrap(), PackCache::open(folder.path()).unwrap());
    let key = ContentHash::of(b"key");
    assert_eq!(one.find_files(&key), None);
    let mut fills = 0;
    let made = derive(&one, &key, &mut fills).unwrap();
    assert_eq!((derive(&other, &key, &mut fills).unwrap(), fills), (made.clone(), 1));
    assert_eq!(other.find_files(&key), Some(made.clone()));
    assert_eq!(one.usage().0, 1);
    // Another file, the same length and other times.
    std::fs::write(made.join("b"), b"six").unwrap();
    assert_eq!(other.find_files(&key), None);
    derive(&other, &key, &mut fills).unwrap();
    assert_eq!((fills, std::fs::read(made.join("b")).unwrap()), (2, b"two".to_vec()));
    std::fs::write(made.join("manifest"), "0000 ../../packs/x\n").unwrap();
    assert_eq!(one.find_files(&key), None);
    derive(&one, &key, &mut fills).unwrap();
    assert_eq!(one.prune(Duration::ZERO).unwrap().0, 1);
    assert_eq!((one.find_files(&key), derived_names(folder.path())), (None, vec![]));
}

#[test]
fn held_files_are_not_pruned() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (PackCache::open(folder.path()).unwrap(), PackCache::open(folder.path()).unwrap());
    let key = ContentHash::of(b"key");
    assert!(one.hold_files(&key).is_none());
    let mut fills = 0;
    let made = derive(&one, &key, &mut fills).unwrap();
    let holds = [one.hold_files(&key).unwrap(), other.hold_files(&key).unwrap()];
    for hold in holds {
        assert_eq!(other.prune(Duration::ZERO).unwrap().0, 0);
        assert_eq!(one.find_files(&key).as_ref(), Some(&made));
        drop(hold);
    }
    assert_eq!(other.prune(Duration::ZERO).unwrap().0, 1);
    assert!(!made.exists() && one.hold_files(&key).is_none());
}

#[test]
fn failed_derivation_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let cache = PackCache::open(folder.path()).unwrap();
    let failed = cache.make_files(&ContentHash::of(b"key"), &mut |folder| {
        std::fs::write(folder.join("half"), b"half").unwrap();
        Err(Error::unsupported("no"))
    });
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Unsupported);
    assert!(derived_names(folder.path()).is_empty());
}

/// `count` empty files with long names, in `levels` folders inside of each other.
fn derive_long_names(cache: &PackCache, key: &ContentHash, levels: usize, count: usize) -> Result<PathBuf> {
    cache.make_files(key, &mut |folder| {
        let inner = (0..levels).fold(folder.to_path_buf(), |inner, _| inner.join("f".repeat(200)));
        std::fs::create_dir_all(&inner).unwrap();
        for number in 0..count {
            std::fs::write(inner.join(format!("{number:0200}")), b"").unwrap();
        }
        Ok(())
    })
}

#[test]
fn a_manifest_of_many_files_is_read_or_refused_before_it_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let cache = PackCache::open(folder.path()).unwrap();
    let key = ContentHash::of(b"key");
    let made = derive_long_names(&cache, &key, 0, 400).unwrap();
    assert!(made.join("manifest").metadata().unwrap().len() > 1 << 16);
    assert_eq!(cache.find_files(&key), Some(made));
    let error = derive_long_names(&cache, &ContentHash::of(b"longer"), 4, 4200).unwrap_err();
    assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("4200 files"), "{error}");
    assert_eq!(derived_names(folder.path()), [key.to_string()]);
}

#[test]
fn concurrent_makers_fill_a_folder_once() {
    let folder = tempfile::tempdir().unwrap();
    let cache = PackCache::open(folder.path()).unwrap();
    let key = ContentHash::of(b"key");
    let fills: usize = std::thread::scope(|scope| {
        let make = || {
            let mut fills = 0;
            derive(&cache, &key, &mut fills).unwrap();
            fills
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(make)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(fills, 1);
}
