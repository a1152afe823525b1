//! What a daemon has to know to go on where another ended: kept by the keeper and, should the keeper die, by the server.

use super::packed::{self, Block, Item, Items, Packed};
use crate::spill::SpillFile;
use cotensor_client::protocol::{Id, SegmentInfo, Spec};
use cotensor_core::{ContentHash, Error, Result};
use cotensor_memory::process::duplicate_fd;
use cotensor_rpc::FRAME_FDS_MAX;
use cotensor_store::backend::VersionState;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet, hash_map};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// All notes together, in bytes, as the store bounds them (they are written in hexadecimal here).
const NOTES_BYTES_MAX: usize = 2 * (16 << 20);
/// A block of a handover is sent when it has so many bytes.
const BLOCK_BYTES: usize = 256 << 10;

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
    /// Whether its name was removed when it meant it.
    #[serde(default)]
    pub(crate) removed: bool,
    /// Where its segment is, if that is not in memory.
    pub(crate) spilled: Option<SpillFile>,
    /// When it was published, by the machine's monotonic clock, in nanoseconds. A server of an earlier version does not say.
    #[serde(default)]
    pub(crate) created_ns: Option<u64>,
}

impl Entry {
    /// What it is to its name.
    pub(crate) fn state(&self) -> VersionState {
        match self {
            Self { current: false, removed: true, .. } => VersionState::Removed,
            Self { current: false, .. } => VersionState::Superseded,
            Self { spilled: Some(_), .. } => VersionState::Spilled,
            _ => VersionState::Published,
        }
    }

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
    /// In a server, the one that its store has.
    pub(crate) file: Arc<File>,
    uses: usize,
}

/// All that is published.
#[derive(Default)]
pub(crate) struct Ledger {
    segments: HashMap<u64, Segment>,
    /// By slot and version. A name's largest number of versions is in one of its entries.
    entries: BTreeMap<(u64, u64), Packed>,
    claims: HashMap<ContentHash, Box<[Id]>>,
    /// Claims whose results are on their way.
    claimed: HashSet<String>,
    notes: HashMap<String, String>,
    notes_bytes: usize,
    slots: u64,
    /// Processes by their sessions.
    sessions: HashMap<u64, Member>,
}

fn at(id: Id) -> (u64, u64) {
    (id.slot, id.version)
}

fn id_of((slot, version): (u64, u64)) -> Id {
    Id { slot, version }
}

impl Ledger {
    /// Writes down what happened; returns the segment in which nothing lies any more because of that.
    ///
    /// # Errors
    /// `Corrupt` for a tensor whose segment is not there, or a segment that is there already or has no descriptor.
    pub(crate) fn apply(&mut self, change: Change, fds: Vec<OwnedFd>) -> Result<Option<u64>> {
        self.apply_with(change, fds.into_iter().next().map(shared))
    }

    /// As [`apply`](Self::apply), with a segment that this process has open.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub(crate) fn apply_with(&mut self, change: Change, file: Option<Arc<File>>) -> Result<Option<u64>> {
        match change {
            Change::Listed { entry, segment } => return self.list(*entry, segment, file),
            Change::Hidden(id) => drop(self.update(id, |entry| (entry.current, entry.removed) = (false, true))),
            Change::Spilled { id, file } => {
                let before = self.update(id, |entry| entry.spilled = Some(file));
                return Ok(before.and_then(|before| self.let_go(&before)));
            }
            Change::Gone(id) => return Ok(self.drop_entry(id)),
            Change::Claimed(key) => drop(self.claimed.insert(key)),
            Change::Abandoned(key) => drop(self.claimed.remove(&key)),
            Change::Finished { key, results } => {
                self.claimed.remove(&key);
                self.claims.insert(packed::parsed(&key)?, results.into());
            }
            Change::Noted { key, note } => self.note(key, note),
            Change::Slots(slot) => self.slots = self.slots.max(slot),
            Change::Joined { session, member } => drop(self.sessions.insert(session, member)),
            Change::Left(session) => drop(self.sessions.remove(&session)),
        }
        Ok(None)
    }

    fn list(&mut self, entry: Entry, segment: Option<SegmentInfo>, file: Option<Arc<File>>) -> Result<Option<u64>> {
        let packed = Packed::of(&entry)?;
        if let Some(info) = segment {
            if entry.segment != info.id {
                return Err(Error::corrupt(format!("segment {} is not the tensor's", info.id)));
            }
            self.add_segment(info, file)?;
        }
        self.use_segment(&packed)?;
        let (slot, version) = at(entry.id);
        self.slots = self.slots.max(slot);
        if entry.current {
            let currents = self.versions(slot).filter(|(_, other)| other.is_current());
            let older: Vec<_> = currents.map(|(&other, _)| other).filter(|other| *other != (slot, version)).collect();
            for other in older {
                self.update(id_of(other), |entry| entry.current = false);
            }
        }
        let before = self.entries.insert((slot, version), packed);
        Ok(before.and_then(|before| self.let_go(&before)))
    }

    fn add_segment(&mut self, info: SegmentInfo, file: Option<Arc<File>>) -> Result<()> {
        let file = file.ok_or_else(|| Error::corrupt("a segment without its descriptor"))?;
        match self.segments.entry(info.id) {
            hash_map::Entry::Occupied(_) => Err(Error::corrupt(format!("segment {} is not new", info.id))),
            hash_map::Entry::Vacant(place) => {
                place.insert(Segment { info, file, uses: 0 });
                Ok(())
            }
        }
    }

    /// One use more of the segment that an entry lies in.
    fn use_segment(&mut self, entry: &Packed) -> Result<()> {
        let Some(number) = entry.segment() else { return Ok(()) };
        let missing = || Error::corrupt(format!("there is no segment {number}"));
        self.segments.get_mut(&number).ok_or_else(missing)?.uses += 1;
        Ok(())
    }

    fn versions(&self, slot: u64) -> impl DoubleEndedIterator<Item = (&(u64, u64), &Packed)> {
        self.entries.range((slot, 0)..=(slot, u64::MAX))
    }

    /// Changes an entry; returns what it was.
    fn update(&mut self, id: Id, change: impl FnOnce(&mut Entry)) -> Option<Packed> {
        let known = self.entries.get_mut(&at(id))?;
        let mut entry = known.entry(id).ok()?;
        change(&mut entry);
        Some(std::mem::replace(known, Packed::of(&entry).ok()?))
    }

    fn drop_entry(&mut self, id: Id) -> Option<u64> {
        let packed = self.entries.remove(&at(id))?;
        // What was packed can be read.
        let entry = packed.entry(id).ok()?;
        let last = self.versions(id.slot).next_back().map(|(&last, _)| id_of(last));
        if let Some(last) = last {
            // The name goes on counting from there.
            self.update(last, |last| last.versions = last.versions.max(entry.versions));
        }
        if let Some(key) = entry.key.as_deref().and_then(ContentHash::from_hex)
            && self.claims.get(&key).is_some_and(|results| results.contains(&id))
        {
            self.claims.remove(&key);
        }
        self.let_go(&packed)
    }

    /// One use less of the segment that an entry lies in; which it is if that was the last.
    fn let_go(&mut self, entry: &Packed) -> Option<u64> {
        let number = entry.segment()?;
        let held = self.segments.get_mut(&number)?;
        held.uses -= 1;
        if held.uses > 0 {
            return None;
        }
        self.segments.remove(&number).map(|segment| segment.info.id)
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
        let mut sent = HashSet::new();
        for (&at, packed) in &self.entries {
            let entry = Box::new(packed.entry(id_of(at))?);
            let first = packed.segment().filter(|number| sent.insert(*number));
            let first = first.and_then(|number| self.segments.get(&number));
            let fds = first.map(Segment::descriptor).transpose()?;
            told(Change::Listed { entry, segment: first.map(|segment| segment.info) }, fds.into_iter().collect())?;
        }
        for (key, results) in &self.claims {
            told(Change::Finished { key: key.to_string(), results: results.to_vec() }, Vec::new())?;
        }
        self.tell_rest(|change| told(change, Vec::new()))
    }

    /// As [`tell`](Self::tell), entries and claims in blocks for [`apply_block`](Self::apply_block): thousands in one
    /// message, and nothing to parse.
    ///
    /// # Errors
    /// Those of `block` and `told`; `Io` when descriptors cannot be duplicated.
    pub(crate) fn hand_over(
        &self,
        mut block: impl FnMut(Vec<u8>, Vec<OwnedFd>) -> Result<()>,
        told: impl FnMut(Change) -> Result<()>,
    ) -> Result<()> {
        let (mut filling, mut fds, mut sent) = (Block::new(), Vec::new(), HashSet::new());
        let is_full = |filling: &Block, fds: &[OwnedFd]| filling.len() >= BLOCK_BYTES || fds.len() == FRAME_FDS_MAX;
        let mut send = |filling: &mut Block, fds: &mut Vec<OwnedFd>| {
            block(std::mem::replace(filling, Block::new()).into_bytes(), std::mem::take(fds))
        };
        for (&at, packed) in &self.entries {
            let first = packed.segment().filter(|number| sent.insert(*number));
            if let Some(segment) = first.and_then(|number| self.segments.get(&number)) {
                fds.push(segment.descriptor()?);
                filling.segment(&segment.info);
            }
            filling.entry(at, packed);
            if is_full(&filling, &fds) {
                send(&mut filling, &mut fds)?;
            }
        }
        for (key, results) in &self.claims {
            filling.claim(key, results);
            if is_full(&filling, &fds) {
                send(&mut filling, &mut fds)?;
            }
        }
        send(&mut filling, &mut fds)?;
        self.tell_rest(told)
    }

    fn tell_rest(&self, mut told: impl FnMut(Change) -> Result<()>) -> Result<()> {
        told(Change::Slots(self.slots))?;
        for key in &self.claimed {
            told(Change::Claimed(key.clone()))?;
        }
        for (&session, &member) in &self.sessions {
            told(Change::Joined { session, member })?;
        }
        for (key, note) in &self.notes {
            told(Change::Noted { key: key.clone(), note: note.clone() })?;
        }
        Ok(())
    }

    /// Adds a block of another ledger.
    ///
    /// # Errors
    /// `Corrupt` for what is no block, and as [`apply`](Self::apply).
    pub(crate) fn apply_block(&mut self, block: &[u8], fds: Vec<OwnedFd>) -> Result<()> {
        let mut fds = fds.into_iter();
        for item in Items::of(block)? {
            match item? {
                Item::Segment(info) => self.add_segment(info, fds.next().map(shared))?,
                Item::Entry(id, packed) => {
                    self.use_segment(&packed)?;
                    self.slots = self.slots.max(id.slot);
                    if self.entries.insert(at(id), packed).is_some() {
                        return Err(Error::corrupt(format!("version {} of {} came twice", id.version, id.slot)));
                    }
                }
                Item::Claim(key, results) => drop(self.claims.insert(key, results)),
            }
        }
        Ok(())
    }

    pub(crate) fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.segments.values()
    }

    pub(crate) fn has_segment(&self, segment: u64) -> bool {
        self.segments.contains_key(&segment)
    }

    /// How many tensors there are.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Every tensor, a name's versions in their order.
    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry> {
        // What was packed can be read.
        self.entries.iter().filter_map(|(&at, packed)| packed.entry(id_of(at)).ok())
    }

    /// The files of what is spilled.
    pub(crate) fn files(&self) -> impl Iterator<Item = SpillFile> {
        let spilled = self.entries.iter().filter(|(_, packed)| packed.segment().is_none());
        spilled.filter_map(|(&at, packed)| packed.entry(id_of(at)).ok()?.spilled)
    }

    pub(crate) fn claims(&self) -> impl Iterator<Item = (&ContentHash, &[Id])> {
        self.claims.iter().map(|(key, results)| (key, &results[..]))
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

impl Segment {
    fn descriptor(&self) -> Result<OwnedFd> {
        duplicate_fd(&*self.file)
    }
}

fn shared(fd: OwnedFd) -> Arc<File> {
    Arc::new(fd.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_client::protocol::Keep;

    fn key() -> String {
        ContentHash::of(b"key").to_string()
    }

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
        let (id, key) = (Id { slot, version }, (slot == 1).then(key));
        let (versions, created_ns) = (version, Some(slot));
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
        };
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
        ledger.apply(Change::Finished { key: key(), results }, Vec::new()).unwrap();
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
        is_the_same(&ledger, &other);
        is_the_same(&ledger, &successor(&ledger));
    }

    /// A ledger that was handed everything.
    fn successor(ledger: &Ledger) -> Ledger {
        let (mut blocks, mut changes) = (Vec::new(), Vec::new());
        let mut keep = |block, fds| {
            blocks.push((block, fds));
            Ok(())
        };
        let mut told = |change| {
            changes.push(change);
            Ok(())
        };
        ledger.hand_over(&mut keep, &mut told).unwrap();
        let mut other = Ledger::default();
        blocks.into_iter().for_each(|(block, fds)| other.apply_block(&block, fds).unwrap());
        for change in changes {
            assert_eq!(other.apply(change, Vec::new()).unwrap(), None);
        }
        other
    }

    fn is_the_same(ledger: &Ledger, other: &Ledger) {
        let entries = sorted(other);
        assert_eq!(entries, sorted(ledger));
        let currents: Vec<bool> = entries.iter().map(|entry| entry.current).collect();
        assert_eq!(currents, [false, true, true, false]);
        use VersionState::{Published, Removed, Superseded};
        let states: Vec<VersionState> = entries.iter().map(Entry::state).collect();
        assert_eq!(states, [Superseded, Published, Published, Removed]);
        assert_eq!((other.segments().count(), other.slots()), (3, 3));
        assert_eq!(other.claims().collect::<Vec<_>>(), [(&ContentHash::of(b"key"), &[Id { slot: 1, version: 2 }][..])]);
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
    fn a_handover_of_many_segments_and_tensors_is_sent_in_blocks() {
        let mut ledger = Ledger::default();
        for slot in 1..=9000 {
            let (change, fds) = listed(slot, 1, if slot <= 150 { slot } else { 1 }, slot <= 150);
            ledger.apply(change, fds).unwrap();
        }
        let mut sizes = Vec::new();
        let block = |block: Vec<u8>, fds: Vec<OwnedFd>| {
            sizes.push((block.len(), fds.len()));
            Ok(())
        };
        ledger.hand_over(block, |_| Ok(())).unwrap();
        assert!(sizes.len() > 3 && sizes.iter().all(|(len, fds)| *len < 2 * BLOCK_BYTES && *fds <= FRAME_FDS_MAX));
        assert_eq!(sizes.iter().map(|(_, fds)| fds).sum::<usize>(), 150);
        let other = successor(&ledger);
        assert_eq!((other.len(), other.segments().count(), other.slots()), (9000, 150, 9000));
        assert_eq!(sorted(&other), sorted(&ledger));
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
        assert_eq!(sorted(&successor(&ledger)), sorted(&ledger));
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
