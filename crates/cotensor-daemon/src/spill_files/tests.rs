use super::content::PIECE_BYTES;
use super::{Files, SpillToFiles};
use crate::state::segment::Sealed;
use cotensor_core::SegmentMut;
use cotensor_core::{ErrorKind, Segment};
use cotensor_memory::MemfdMut;
use cotensor_store::SpillStorage;
use cotensor_supervisor::{Listening, SpillFile};
use std::sync::Arc;

fn sealed(bytes: &[u8]) -> Sealed {
    let mut memory = MemfdMut::create(bytes.len()).unwrap();
    memory.write_at(0, bytes).unwrap();
    Sealed::of(memory).unwrap()
}

fn numbers(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 31 % 251) as u8).collect()
}

fn content(segment: &dyn Segment) -> Vec<u8> {
    let mut bytes = vec![0; segment.len()];
    segment.read_at(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn spilled_segment_round_trip_and_removal_of_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let files = Files::open(&folder.path().join("spill"), &socket, u64::MAX).unwrap();
    let spill = SpillToFiles(Arc::clone(&files));
    let mut kept = Vec::new();
    for len in [0, 1, 4095, PIECE_BYTES, PIECE_BYTES + 17] {
        let bytes = numbers(len);
        let spilled = spill.spill(&sealed(&bytes)).unwrap();
        let restored = spilled.restore().unwrap();
        assert_eq!((spilled.bytes(), content(&*restored) == bytes), (len as u64, true), "{len}");
        kept.push(spilled);
    }
    let path = files.table().file(kept[1].number()).unwrap().path;
    assert_eq!(std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&path).unwrap()) & 0o777, 0o600);
    // The next server takes over the known files and removes others.
    std::fs::write(files.folder.join("99.tensors"), "half a file").unwrap();
    let known: Vec<SpillFile> = kept.iter().map(|spilled| files.table().file(spilled.number()).unwrap()).collect();
    let next = Files::open(&folder.path().join("spill"), &socket, u64::MAX).unwrap();
    let taken = next.adopt(known);
    assert!(!files.folder.join("99.tensors").exists());
    assert_eq!(content(&*taken[4].restore().unwrap()), numbers(PIECE_BYTES + 17));
    let fresh = SpillToFiles(Arc::clone(&next)).spill(&sealed(b"x")).unwrap();
    assert!(kept.iter().all(|spilled| spilled.number() != fresh.number()));
    drop((fresh, taken));
    assert!(!path.exists());
    assert_eq!(std::fs::read_dir(&next.folder).unwrap().count(), 1, "the file that names the owner");
    assert_eq!(next.table().bytes(), 0);
}

#[test]
fn damaged_file_is_refused_and_size_is_limited() {
    let folder = tempfile::tempdir().unwrap();
    let files = Files::open(folder.path(), &folder.path().join("socket"), 10_000).unwrap();
    let spill = SpillToFiles(Arc::clone(&files));
    let spilled = spill.spill(&sealed(&numbers(8000))).unwrap();
    let error = spill.spill(&sealed(&numbers(8000))).err().unwrap();
    assert_eq!((error.kind(), error.file()), (ErrorKind::OverBudget, Some(files.folder.as_path())));
    let path = files.table().file(spilled.number()).unwrap().path;
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[7000] ^= 1;
    for damaged in [&bytes[..], &bytes[..7999], b""] {
        std::fs::write(&path, damaged).unwrap();
        let error = spilled.restore().err().unwrap();
        assert_eq!((error.kind(), error.file()), (ErrorKind::Corrupt, Some(path.as_path())));
    }
    std::fs::remove_file(&path).unwrap();
    assert_eq!(spilled.restore().err().unwrap().kind(), ErrorKind::NotFound);
    drop(spilled);
    drop(spill.spill(&sealed(&numbers(8000))).unwrap());
}

#[test]
fn folders_of_dead_daemons_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let living = Listening::bind(&at("living")).unwrap();
    let make = |name: &str| {
        let files = Files::open(&at("spill"), &at(name), u64::MAX).unwrap();
        std::fs::write(files.folder.join("1.tensors"), "left").unwrap();
        files.folder.clone()
    };
    let (theirs, dead) = (make("living"), make("dead"));
    let other = at("spill").join("cotensor-notes");
    std::fs::create_dir(&other).unwrap();
    let mine = make("mine");
    assert!(theirs.exists() && !dead.exists() && other.exists() && mine.exists());
    // The daemon ends and releases its lock.
    drop(living);
    make("mine");
    assert!(!theirs.exists() && other.exists());
}
