use super::event::{Entry, Event, SessionClient, SpillFile};
use super::replay::{BLOCK_BYTES, HANDOVER_FDS};
use super::table::{Journal, NOTES_BYTES_MAX};
use cotensor_client::protocol::Keep;
use cotensor_client::protocol::{Id, SegmentInfo, Spec};
use cotensor_core::{ContentHash, Device};
use cotensor_memory::process::duplicate_fds;
use cotensor_store::backend::VersionState;
use std::os::fd::{BorrowedFd, OwnedFd};

fn key() -> String {
    ContentHash::of(b"key").to_string()
}

/// A publication, with the descriptor of a new segment.
pub(crate) fn published(name_id: u64, version: u64, segment: u64, new: bool) -> (Event, Vec<OwnedFd>) {
    let spec = Spec {
        name: format!("name {name_id}"),
        dtype: "uint8".to_owned(),
        shape: vec![1],
        device: Device::Cpu,
        kind: "other".to_owned(),
        space: None,
        producer: String::new(),
        keep: Keep::Cached,
        keep_ms: None,
        provenance: None,
        metadata: None,
        members: Vec::new(),
    };
    let (id, key) = (Id { name_id, version }, (name_id == 1).then(key));
    let (versions, created_ns) = (version, Some(name_id));
    let entry = Entry {
        id,
        spec,
        segment,
        offset: 0,
        key,
        versions,
        current: true,
        removed: false,
        spilled: None,
        created_ns,
        left_ns: None,
    };
    let entry = Box::new(entry);
    let fds = new.then(|| OwnedFd::from(tempfile::tempfile().unwrap())).into_iter().collect();
    (
        Event::Published {
            entry,
            segment: new.then_some(SegmentInfo { id: segment, bytes: 1, slab: false, device: Device::Cpu }),
        },
        fds,
    )
}

fn filled() -> Journal {
    let mut journal = Journal::default();
    for (name_id, version, segment, new) in [(1, 1, 10, true), (1, 2, 11, true), (2, 1, 11, false), (3, 7, 12, true)] {
        let (change, fds) = published(name_id, version, segment, new);
        journal.apply(change, fds).unwrap();
    }
    journal.apply(Event::Unlisted(Id { name_id: 3, version: 7 }), Vec::new()).unwrap();
    let results = vec![Id { name_id: 1, version: 2 }];
    journal.apply(Event::Finished { key: key(), results }, Vec::new()).unwrap();
    for key in ["mine", "given up"] {
        journal.apply(Event::Claimed(key.to_owned()), Vec::new()).unwrap();
    }
    journal.apply(Event::Abandoned("given up".to_owned()), Vec::new()).unwrap();
    journal.apply(Event::NotePut { key: "n".into(), note: "00".into() }, Vec::new()).unwrap();
    for session in [1, 2] {
        let client = SessionClient { pid: 7, was: Some(session + 10), locked: true };
        journal.apply(Event::SessionStarted { session, client }, Vec::new()).unwrap();
        let leases = vec![Id { name_id: 1, version: session }];
        journal.apply(Event::SessionLeft { session, leases }, Vec::new()).unwrap();
    }
    journal.apply(Event::SessionEnded(1), Vec::new()).unwrap();
    journal
}

fn sorted(journal: &Journal) -> Vec<Entry> {
    let mut entries: Vec<Entry> = journal.entries().collect();
    entries.sort_by_key(|entry| (entry.id.name_id, entry.id.version));
    entries
}

#[test]
fn replayed_journal_is_equal() {
    let journal = filled();
    let mut other = Journal::default();
    journal
        .replay(|change, fd| {
            let sent = serde_json::to_string(&change).unwrap();
            other.apply(serde_json::from_str(&sent).unwrap(), duplicate_fds(fd).unwrap()).map(drop)
        })
        .unwrap();
    assert_equal(&journal, &other);
    assert_equal(&journal, &successor(&journal));
}

/// The journal of a successor.
fn successor(journal: &Journal) -> Journal {
    let (mut blocks, mut events) = (Vec::new(), Vec::new());
    let mut send_block = |block, fds| {
        blocks.push((block, fds));
        Ok(())
    };
    let mut send_event = |event| {
        events.push(event);
        Ok(())
    };
    journal.hand_over(&mut send_block, &mut send_event).unwrap();
    let mut other = Journal::default();
    blocks.into_iter().for_each(|(block, fds)| other.apply_block(&block, duplicate_fds(fds).unwrap()).unwrap());
    for event in events {
        assert_eq!(other.apply(event, Vec::new()).unwrap(), None);
    }
    other
}

fn assert_equal(journal: &Journal, other: &Journal) {
    let entries = sorted(other);
    assert_eq!(entries, sorted(journal));
    let currents: Vec<bool> = entries.iter().map(|entry| entry.current).collect();
    assert_eq!(currents, [false, true, true, false]);
    use VersionState::{Published, Removed, Superseded};
    let states: Vec<VersionState> = entries.iter().map(Entry::state).collect();
    assert_eq!(states, [Superseded, Published, Published, Removed]);
    assert_eq!((other.segments().count(), other.name_ids()), (3, 3));
    assert_eq!(other.claims().collect::<Vec<_>>(), [(&ContentHash::of(b"key"), &[Id { name_id: 1, version: 2 }][..])]);
    assert_eq!(other.notes().collect::<Vec<_>>(), [("n", "00")]);
    assert_eq!(other.claimed().collect::<Vec<_>>(), ["mine"]);
    assert_eq!(other.sessions().collect::<Vec<_>>(), [(2, SessionClient { pid: 7, was: Some(12), locked: true })]);
    assert_eq!(other.left().collect::<Vec<_>>(), [(2, &[Id { name_id: 1, version: 2 }][..])]);
}

#[test]
fn segment_is_removed_with_its_last_tensor_and_claim_with_its_first() {
    let mut journal = filled();
    let (change, fds) = published(9, 1, 10, true);
    assert!(journal.apply(change, fds).is_err(), "a segment is added once");
    let mut free = |name_id, version| journal.apply(Event::Freed(Id { name_id, version }), Vec::new()).unwrap();
    assert_eq!((free(1, 2), free(1, 2)), (None, None), "its segment has another tensor");
    assert_eq!((journal.claims().count(), journal.segments().count()), (0, 3));
    assert_eq!(
        journal.entries().find(|entry| entry.id.name_id == 1).unwrap().versions,
        2,
        "the number of versions is kept"
    );
    for (name_id, version) in [(2, 1), (1, 1), (3, 7)] {
        assert!(journal.apply(Event::Freed(Id { name_id, version }), Vec::new()).unwrap().is_some());
    }
    assert_eq!((journal.entries().count(), journal.segments().count(), journal.name_ids()), (0, 0, 3));
    let (change, _) = published(1, 1, 99, false);
    assert!(journal.apply(change, Vec::new()).is_err());
    let (change, _) = published(1, 1, 99, true);
    assert!(journal.apply(change, Vec::new()).is_err());
}

#[test]
fn large_handover_is_sent_in_blocks() {
    let mut journal = Journal::default();
    for name_id in 1..=9000 {
        let (change, fds) = published(name_id, 1, if name_id <= 150 { name_id } else { 1 }, name_id <= 150);
        journal.apply(change, fds).unwrap();
    }
    let mut sizes = Vec::new();
    let block = |block: Vec<u8>, fds: Vec<BorrowedFd<'_>>| {
        sizes.push((block.len(), fds.len()));
        Ok(())
    };
    journal.hand_over(block, |_| Ok(())).unwrap();
    assert!(sizes.len() > 3 && sizes.iter().all(|(len, fds)| *len < 2 * BLOCK_BYTES && *fds <= HANDOVER_FDS));
    assert_eq!(sizes.iter().map(|(_, fds)| fds).sum::<usize>(), 150);
    let other = successor(&journal);
    assert_eq!((other.len(), other.segments().count(), other.name_ids()), (9000, 150, 9000));
    assert_eq!(sorted(&other), sorted(&journal));
}

#[test]
fn spilled_tensor_stays_without_its_segment() {
    let mut journal = filled();
    let file: SpillFile = serde_json::from_str(r#"{"number": 1, "path": "/spill/1", "bytes": 1, "hash": ""}"#).unwrap();
    let spilled = |name_id, version| Event::Spilled { id: Id { name_id, version }, file: file.clone() };
    assert_eq!(journal.apply(spilled(1, 2), Vec::new()).unwrap(), None);
    assert_eq!(journal.apply(spilled(2, 1), Vec::new()).unwrap(), Some(11), "the last tensor of its segment");
    assert_eq!((journal.entries().count(), journal.claims().count(), journal.files().count()), (4, 1, 2));
    let mut other = Journal::default();
    journal.replay(|change, fd| other.apply(change, duplicate_fds(fd).unwrap()).map(drop)).unwrap();
    assert_eq!(sorted(&other), sorted(&journal));
    assert_eq!(sorted(&successor(&journal)), sorted(&journal));
    // Restored, and freed.
    let (mut change, fds) = published(1, 2, 20, true);
    if let Event::Published { entry, .. } = &mut change {
        entry.spilled = None;
    }
    assert_eq!(journal.apply(change, fds).unwrap(), None);
    assert_eq!(journal.apply(Event::Freed(Id { name_id: 1, version: 2 }), Vec::new()).unwrap(), Some(20));
    assert_eq!(journal.apply(Event::Freed(Id { name_id: 2, version: 1 }), Vec::new()).unwrap(), None);
    assert_eq!(journal.files().count(), 0);
}

#[test]
fn notes_are_bounded() {
    let mut journal = Journal::default();
    for index in 0..40 {
        let note = "0".repeat(2 << 20);
        journal.apply(Event::NotePut { key: index.to_string(), note }, Vec::new()).unwrap();
        assert!(journal.notes_bytes <= NOTES_BYTES_MAX);
    }
    assert!(journal.notes().any(|(key, _)| key == "39"));
}
