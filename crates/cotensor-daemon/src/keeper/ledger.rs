//! What a daemon has to know to go on where another ended: kept by the keeper and, should the keeper die, by the server.

use crate::spill::SpillFile;
use cotensor_client::protocol::{Id, SegmentInfo, Spec};
use cotensor_core::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// All notes together, in bytes, as the store bounds them (they are written in hexadecimal here).
const NOTES_BYTES_MAX: usize = 2 * (16 << 20);

/// A published tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) id: Id,
    pub(crate) spec: Spec,
    pub(crate) segment: u64,
    /// Where it starts in the segment, in bytes. Its elements are row-major.
    pub(crate) offset: usize,
    /// The claim whose result it is part of.
    pub(crate) key: Option<String>,
    /// How many versions its name had.
    pub(crate) versions: u64,
    /// Whether its name means it.
    pub(crate) current: bool,
    /// Where its segment is, if that is not in memory.
    pub(crate) spilled: Option<SpillFile>,
    /// When it was published, by the machine's monotonic clock, in nanoseconds. A server of an earlier version does not say.
    #[serde(default)]
    pub(crate) created_ns: Option<u64>,
}

impl Entry {
    pub(crate) fn created(&self) -> Option<Duration> {
        self.created_ns.map(Duration::from_nanos)
    }
}

/// Who has a session.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Member {
    pub(crate) pid: i32,
    /// The session that it took up: the one that the client knows, should the answer have been lost with the server.
    pub(crate) was: Option<u64>,
}

/// What happened.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Change {
    /// A tensor was published. The descriptor of its segment comes with the first in it.
    Listed { entry: Box<Entry>, segment: Option<SegmentInfo> },
    /// A name means nothing any more; this version may still be leased.
    Hidden(Id),
    /// A version's segment went to a file.
    Spilled { id: Id, file: SpillFile },
    /// A version is out of the store.
    Gone(Id),
    /// The results of a claim.
    Finished { key: String, results: Vec<Id> },
    /// A session computes this.
    Claimed(String),
    /// It does not any more.
    Abandoned(String),
    /// A note.
    Noted { key: String, note: String },
    /// Slots up to this one were given to names.
    Slots(u64),
    /// A process has this session on the socket.
    Joined { session: u64, member: Member },
    /// This session is over, or nobody waits for it any more.
    Left(u64),
}

/// A segment and how many tensors lie in it.
pub(crate) struct Segment {
    pub(crate) info: SegmentInfo,
    pub(crate) fd: OwnedFd,
    uses: usize,
}

/// The versions of one name.
#[derive(Default)]
struct Name {
    versions: u64,
    entries: BTreeMap<u64, Entry>,
}

/// All that is published.
#[derive(Default)]
pub(crate) struct Ledger {
    segments: HashMap<u64, Segment>,
    names: HashMap<u64, Name>,
    claims: HashMap<String, Vec<Id>>,
    /// Claims whose results are on their way.
    claimed: HashSet<String>,
    notes: HashMap<String, String>,
    notes_bytes: usize,
    slots: u64,
    /// Processes by their sessions.
    sessions: HashMap<u64, Member>,
}

impl Ledger {
    /// Writes down what happened; returns the segment in which nothing lies any more because of that.
    ///
    /// # Errors
    /// `Corrupt` for a tensor whose segment is not there, or a segment that is there already or has no descriptor.
    pub(crate) fn apply(&mut self, change: Change, fds: Vec<OwnedFd>) -> Result<Option<u64>> {
        match change {
            Change::Listed { entry, segment } => return self.list(*entry, segment, fds),
            Change::Hidden(id) => {
                if let Some(entry) = self.names.get_mut(&id.slot).and_then(|name| name.entries.get_mut(&id.version)) {
                    entry.current = false;
                }
            }
            Change::Spilled { id, file } => return Ok(self.spill(id, file)),
            Change::Gone(id) => return Ok(self.drop_entry(id)),
            Change::Claimed(key) => drop(self.claimed.insert(key)),
            Change::Abandoned(key) => drop(self.claimed.remove(&key)),
            Change::Finished { key, results } => {
                self.claimed.remove(&key);
                self.claims.insert(key, results);
            }
            Change::Noted { key, note } => self.note(key, note),
            Change::Slots(slot) => self.slots = self.slots.max(slot),
            Change::Joined { session, member } => drop(self.sessions.insert(session, member)),
            Change::Left(session) => drop(self.sessions.remove(&session)),
        }
        Ok(None)
    }

    fn list(&mut self, entry: Entry, segment: Option<SegmentInfo>, fds: Vec<OwnedFd>) -> Result<Option<u64>> {
        if let Some(info) = segment {
            let fd = fds.into_iter().next().ok_or_else(|| Error::corrupt("a segment without its descriptor"))?;
            if self.segments.contains_key(&info.id) || entry.segment != info.id {
                return Err(Error::corrupt(format!("segment {} is not new", info.id)));
            }
            self.segments.insert(info.id, Segment { info, fd, uses: 0 });
        }
        if entry.spilled.is_none() {
            let segment = self.segments.get_mut(&entry.segment);
            segment.ok_or_else(|| Error::corrupt(format!("{} lies in no segment", entry.spec.name)))?.uses += 1;
        }
        self.slots = self.slots.max(entry.id.slot);
        let name = self.names.entry(entry.id.slot).or_default();
        name.versions = name.versions.max(entry.versions);
        if entry.current {
            name.entries.values_mut().for_each(|older| older.current = false);
        }
        let before = name.entries.insert(entry.id.version, entry);
        Ok(before.and_then(|before| self.let_go(&before)))
    }

    fn spill(&mut self, id: Id, file: SpillFile) -> Option<u64> {
        let entry = self.names.get_mut(&id.slot)?.entries.get_mut(&id.version)?;
        let before = entry.clone();
        entry.spilled = Some(file);
        self.let_go(&before)
    }

    fn drop_entry(&mut self, id: Id) -> Option<u64> {
        let name = self.names.get_mut(&id.slot)?;
        let entry = name.entries.remove(&id.version)?;
        if name.entries.is_empty() {
            self.names.remove(&id.slot);
        }
        if let Some(key) = &entry.key
            && self.claims.get(key).is_some_and(|results| results.contains(&id))
        {
            self.claims.remove(key);
        }
        self.let_go(&entry)
    }

    /// One use less of the segment that `entry` lies in; which it is if that was the last.
    fn let_go(&mut self, entry: &Entry) -> Option<u64> {
        if entry.spilled.is_some() {
            return None;
        }
        let held = self.segments.get_mut(&entry.segment)?;
        held.uses -= 1;
        if held.uses > 0 {
            return None;
        }
        self.segments.remove(&entry.segment).map(|segment| segment.info.id)
    }

    fn note(&mut self, key: String, note: String) {
        let bytes = key.len() + note.len();
        if self.notes_bytes + bytes > NOTES_BYTES_MAX {
            self.notes.clear();
            self.notes_bytes = 0;
        }
        self.notes_bytes += bytes;
        let key_bytes = key.len();
        if let Some(old) = self.notes.insert(key, note) {
            self.notes_bytes -= key_bytes + old.len();
        }
    }

    /// Tells `told` all that makes another ledger the same, with the descriptors.
    ///
    /// # Errors
    /// Those of `told`; `Io` when descriptors cannot be duplicated.
    pub(crate) fn tell(&self, mut told: impl FnMut(Change, Vec<OwnedFd>) -> Result<()>) -> Result<()> {
        told(Change::Slots(self.slots), Vec::new())?;
        let mut sent = HashSet::new();
        for name in self.names.values() {
            for entry in name.entries.values() {
                let entry = Box::new(Entry { versions: name.versions, ..entry.clone() });
                let segment = self.segments.get(&entry.segment).filter(|_| entry.spilled.is_none());
                let first = segment.filter(|_| sent.insert(entry.segment));
                let fds = first.map(|segment| segment.fd.try_clone()).transpose();
                let fds = fds.map_err(|error| Error::io("duplicating a descriptor", &error))?;
                let segment = first.map(|segment| segment.info);
                told(Change::Listed { entry, segment }, fds.into_iter().collect())?;
            }
        }
        for (key, results) in &self.claims {
            told(Change::Finished { key: key.clone(), results: results.clone() }, Vec::new())?;
        }
        for key in &self.claimed {
            told(Change::Claimed(key.clone()), Vec::new())?;
        }
        for (&session, &member) in &self.sessions {
            told(Change::Joined { session, member }, Vec::new())?;
        }
        for (key, note) in &self.notes {
            told(Change::Noted { key: key.clone(), note: note.clone() }, Vec::new())?;
        }
        Ok(())
    }

    pub(crate) fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.segments.values()
    }

    pub(crate) fn has_segment(&self, segment: u64) -> bool {
        self.segments.contains_key(&segment)
    }

    /// Every tensor, a name's versions in their order.
    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry> {
        let versions = |name: &Name| {
            name.entries.values().map(|entry| Entry { versions: name.versions, ..entry.clone() }).collect()
        };
        self.names.values().flat_map(move |name| -> Vec<Entry> { versions(name) })
    }

    /// The files of what is spilled.
    pub(crate) fn files(&self) -> impl Iterator<Item = &SpillFile> {
        self.names.values().flat_map(|name| name.entries.values()).filter_map(|entry| entry.spilled.as_ref())
    }

    pub(crate) fn claims(&self) -> impl Iterator<Item = (&str, &[Id])> {
        self.claims.iter().map(|(key, results)| (key.as_str(), results.as_slice()))
    }

    pub(crate) fn claimed(&self) -> impl Iterator<Item = &str> {
        self.claimed.iter().map(String::as_str)
    }

    pub(crate) fn notes(&self) -> impl Iterator<Item = (&str, &str)> {
        self.notes.iter().map(|(key, note)| (key.as_str(), note.as_str()))
    }

    /// Sessions, and the processes that have them.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = (u64, Member)> {
        self.sessions.iter().map(|(session, member)| (*session, *member))
    }

    pub(crate) fn slots(&self) -> u64 {
        self.slots
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_client::protocol::Keep;

    fn listed(slot: u64, version: u64, segment: u64, new: bool) -> (Change, Vec<OwnedFd>) {
        let spec = Spec {
            name: format!("name {slot}"),
            dtype: "uint8".to_owned(),
            shape: vec![1],
            kind: "other".to_owned(),
            space: None,
            producer: String::new(),
            keep: Keep::Cached,
            provenance: None,
        };
        let (id, key) = (Id { slot, version }, (slot == 1).then(|| "key".to_owned()));
        let (versions, created_ns) = (version, Some(slot));
        let entry = Entry { id, spec, segment, offset: 0, key, versions, current: true, spilled: None, created_ns };
        let entry = Box::new(entry);
        let fds = new.then(|| OwnedFd::from(tempfile::tempfile().unwrap())).into_iter().collect();
        (Change::Listed { entry, segment: new.then_some(SegmentInfo { id: segment, bytes: 1, slab: false }) }, fds)
    }

    fn filled() -> Ledger {
        let mut ledger = Ledger::default();
        for (slot, version, segment, new) in [(1, 1, 10, true), (1, 2, 11, true), (2, 1, 11, false), (3, 7, 12, true)] {
            let (change, fds) = listed(slot, version, segment, new);
            ledger.apply(change, fds).unwrap();
        }
        ledger.apply(Change::Hidden(Id { slot: 3, version: 7 }), Vec::new()).unwrap();
        let results = vec![Id { slot: 1, version: 2 }];
        ledger.apply(Change::Finished { key: "key".into(), results }, Vec::new()).unwrap();
        for key in ["mine", "given up"] {
            ledger.apply(Change::Claimed(key.to_owned()), Vec::new()).unwrap();
        }
        ledger.apply(Change::Abandoned("given up".to_owned()), Vec::new()).unwrap();
        ledger.apply(Change::Noted { key: "n".into(), note: "00".into() }, Vec::new()).unwrap();
        for session in [1, 2] {
            let member = Member { pid: 7, was: Some(session + 10) };
            ledger.apply(Change::Joined { session, member }, Vec::new()).unwrap();
        }
        ledger.apply(Change::Left(1), Vec::new()).unwrap();
        ledger
    }

    fn sorted(ledger: &Ledger) -> Vec<Entry> {
        let mut entries: Vec<Entry> = ledger.entries().collect();
        entries.sort_by_key(|entry| (entry.id.slot, entry.id.version));
        entries
    }

    #[test]
    fn another_that_is_told_all_is_the_same() {
        let ledger = filled();
        let mut other = Ledger::default();
        ledger
            .tell(|change, fds| {
                let sent = serde_json::to_string(&change).unwrap();
                other.apply(serde_json::from_str(&sent).unwrap(), fds).map(drop)
            })
            .unwrap();
        let entries = sorted(&other);
        assert_eq!(entries, sorted(&ledger));
        let currents: Vec<bool> = entries.iter().map(|entry| entry.current).collect();
        assert_eq!(currents, [false, true, true, false]);
        assert_eq!((other.segments().count(), other.slots()), (3, 3));
        assert_eq!(other.claims().collect::<Vec<_>>(), [("key", &[Id { slot: 1, version: 2 }][..])]);
        assert_eq!(other.notes().collect::<Vec<_>>(), [("n", "00")]);
        assert_eq!(other.claimed().collect::<Vec<_>>(), ["mine"]);
        assert_eq!(other.sessions().collect::<Vec<_>>(), [(2, Member { pid: 7, was: Some(12) })]);
    }

    #[test]
    fn segments_go_with_their_last_tensor_and_claims_with_their_first() {
        let mut ledger = filled();
        let (change, fds) = listed(9, 1, 10, true);
        assert!(ledger.apply(change, fds).is_err(), "a segment comes once: its tensors are counted");
        let mut gone = |slot, version| ledger.apply(Change::Gone(Id { slot, version }), Vec::new()).unwrap();
        assert_eq!((gone(1, 2), gone(1, 2)), (None, None), "another lies in its segment");
        assert_eq!((ledger.claims().count(), ledger.segments().count()), (0, 3));
        assert_eq!(ledger.entries().find(|entry| entry.id.slot == 1).unwrap().versions, 2, "two versions there were");
        for (slot, version) in [(2, 1), (1, 1), (3, 7)] {
            assert!(ledger.apply(Change::Gone(Id { slot, version }), Vec::new()).unwrap().is_some());
        }
        assert_eq!((ledger.entries().count(), ledger.segments().count(), ledger.slots()), (0, 0, 3));
        let (change, _) = listed(1, 1, 99, false);
        assert!(ledger.apply(change, Vec::new()).is_err());
        let (change, _) = listed(1, 1, 99, true);
        assert!(ledger.apply(change, Vec::new()).is_err());
    }

    #[test]
    fn a_spilled_tensor_stays_without_its_segment() {
        let mut ledger = filled();
        let file: SpillFile =
            serde_json::from_str(r#"{"number": 1, "path": "/spill/1", "bytes": 1, "hash": ""}"#).unwrap();
        let spilled = |slot, version| Change::Spilled { id: Id { slot, version }, file: file.clone() };
        assert_eq!(ledger.apply(spilled(1, 2), Vec::new()).unwrap(), None);
        assert_eq!(ledger.apply(spilled(2, 1), Vec::new()).unwrap(), Some(11), "the last in it");
        assert_eq!((ledger.entries().count(), ledger.claims().count(), ledger.files().count()), (4, 1, 2));
        let mut other = Ledger::default();
        ledger.tell(|change, fds| other.apply(change, fds).map(drop)).unwrap();
        assert_eq!(sorted(&other), sorted(&ledger));
        // Back in memory, and gone.
        let (mut change, fds) = listed(1, 2, 20, true);
        if let Change::Listed { entry, .. } = &mut change {
            entry.spilled = None;
        }
        assert_eq!(ledger.apply(change, fds).unwrap(), None);
        assert_eq!(ledger.apply(Change::Gone(Id { slot: 1, version: 2 }), Vec::new()).unwrap(), Some(20));
        assert_eq!(ledger.apply(Change::Gone(Id { slot: 2, version: 1 }), Vec::new()).unwrap(), None);
        assert_eq!(ledger.files().count(), 0);
    }

    #[test]
    fn notes_are_bounded() {
        let mut ledger = Ledger::default();
        for index in 0..40 {
            let note = "0".repeat(2 << 20);
            ledger.apply(Change::Noted { key: index.to_string(), note }, Vec::new()).unwrap();
            assert!(ledger.notes_bytes <= NOTES_BYTES_MAX);
        }
        assert!(ledger.notes().any(|(key, _)| key == "39"));
    }
}
