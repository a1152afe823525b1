//! The tables of the journal.

use super::event::{Entry, Event, SessionClient, SpillFile};
use super::packed::{PackedEntry, parse_hash};
use cotensor_client::protocol::{Id, SegmentInfo};
use cotensor_core::{ContentHash, Error, Result};
use std::collections::{BTreeMap, HashMap, HashSet, hash_map};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The most bytes of all notes. The store has the same limit; hexadecimal digits double it.
pub(super) const NOTES_BYTES_MAX: usize = 2 * (16 << 20);
/// A segment and the number of its tensors.
pub struct Segment {
    /// Its number, its length and its device.
    pub info: SegmentInfo,
    /// In a server, the file of the store's segment.
    pub file: Arc<File>,
    uses: usize,
}

/// The published tensors, the computations, the notes and the sessions of a daemon.
#[derive(Default)]
pub struct Journal {
    pub(super) segments: HashMap<u64, Segment>,
    /// By the id of the name and version. One of a name's entries has its largest number of versions.
    pub(super) entries: BTreeMap<(u64, u64), PackedEntry>,
    pub(super) claims: HashMap<ContentHash, Box<[Id]>>,
    /// Claims without results yet.
    pub(super) claimed: HashSet<String>,
    pub(super) notes: HashMap<String, String>,
    pub(super) notes_bytes: usize,
    pub(super) name_ids: u64,
    /// Clients by their sessions.
    pub(super) sessions: HashMap<u64, SessionClient>,
    /// The leases of those sessions that have no connection.
    pub(super) left: HashMap<u64, Vec<Id>>,
}

pub(super) fn at(id: Id) -> (u64, u64) {
    (id.name_id, id.version)
}

pub(super) fn id_of((name_id, version): (u64, u64)) -> Id {
    Id { name_id, version }
}

impl Journal {
    /// Applies an event. Returns the segment that has lost its last tensor.
    ///
    /// # Errors
    /// `Corrupt` for a tensor without its segment, and for a segment that exists already or has no descriptor.
    pub fn apply(&mut self, event: Event, fds: Vec<OwnedFd>) -> Result<Option<u64>> {
        self.apply_with(event, fds.into_iter().next().map(shared))
    }

    /// As [`apply`](Self::apply), with a segment that this process has open.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub(crate) fn apply_with(&mut self, event: Event, file: Option<Arc<File>>) -> Result<Option<u64>> {
        match event {
            Event::Published { entry, segment } => return self.publish(*entry, segment, file),
            Event::Unlisted(id) => drop(self.update(id, |entry| (entry.current, entry.removed) = (false, true))),
            Event::Spilled { id, file } => {
                let before = self.update(id, |entry| entry.spilled = Some(file));
                return Ok(before.and_then(|before| self.release_segment(&before)));
            }
            Event::Left { id, at_ns } => drop(self.update(id, |entry| entry.left_ns = Some(at_ns))),
            Event::Freed(id) => return Ok(self.drop_entry(id)),
            Event::Claimed(key) => drop(self.claimed.insert(key)),
            Event::Abandoned(key) => drop(self.claimed.remove(&key)),
            Event::Finished { key, results } => {
                self.claimed.remove(&key);
                self.claims.insert(parse_hash(&key)?, results.into());
            }
            Event::NotePut { key, note } => self.put_note(key, note),
            Event::NameIds(name_id) => self.name_ids = self.name_ids.max(name_id),
            Event::SessionStarted { session, client } => drop(self.sessions.insert(session, client)),
            Event::SessionLeft { session, leases } => drop(self.left.insert(session, leases)),
            Event::SessionEnded(session) => {
                self.sessions.remove(&session);
                self.left.remove(&session);
            }
        }
        Ok(None)
    }

    fn publish(&mut self, entry: Entry, segment: Option<SegmentInfo>, file: Option<Arc<File>>) -> Result<Option<u64>> {
        let packed = PackedEntry::pack(&entry)?;
        if let Some(info) = segment {
            if entry.segment != info.id {
                return Err(Error::corrupt(format!("segment {} is not the tensor's", info.id)));
            }
            self.add_segment(info, file)?;
        }
        self.use_segment(&packed)?;
        let (name_id, version) = at(entry.id);
        self.name_ids = self.name_ids.max(name_id);
        if entry.current {
            let currents = self.versions(name_id).filter(|(_, other)| other.is_current());
            let older: Vec<_> =
                currents.map(|(&other, _)| other).filter(|other| *other != (name_id, version)).collect();
            for other in older {
                self.update(id_of(other), |entry| entry.current = false);
            }
        }
        let before = self.entries.insert((name_id, version), packed);
        Ok(before.and_then(|before| self.release_segment(&before)))
    }

    pub(super) fn add_segment(&mut self, info: SegmentInfo, file: Option<Arc<File>>) -> Result<()> {
        let file = file.ok_or_else(|| Error::corrupt("a segment without its descriptor"))?;
        match self.segments.entry(info.id) {
            hash_map::Entry::Occupied(_) => Err(Error::corrupt(format!("segment {} is not new", info.id))),
            hash_map::Entry::Vacant(place) => {
                place.insert(Segment { info, file, uses: 0 });
                Ok(())
            }
        }
    }

    /// Counts one more tensor in the entry's segment.
    pub(super) fn use_segment(&mut self, entry: &PackedEntry) -> Result<()> {
        let Some(number) = entry.segment() else { return Ok(()) };
        let missing = || Error::corrupt(format!("there is no segment {number}"));
        self.segments.get_mut(&number).ok_or_else(missing)?.uses += 1;
        Ok(())
    }

    fn versions(&self, name_id: u64) -> impl DoubleEndedIterator<Item = (&(u64, u64), &PackedEntry)> {
        self.entries.range((name_id, 0)..=(name_id, u64::MAX))
    }

    /// Changes an entry. Returns the former one.
    fn update(&mut self, id: Id, change: impl FnOnce(&mut Entry)) -> Option<PackedEntry> {
        let known = self.entries.get_mut(&at(id))?;
        let mut entry = known.unpack(id).ok()?;
        change(&mut entry);
        Some(std::mem::replace(known, PackedEntry::pack(&entry).ok()?))
    }

    fn drop_entry(&mut self, id: Id) -> Option<u64> {
        let packed = self.entries.remove(&at(id))?;
        // A packed entry can always be read.
        let entry = packed.unpack(id).ok()?;
        let last = self.versions(id.name_id).next_back().map(|(&last, _)| id_of(last));
        if let Some(last) = last {
            // Later versions of the name continue its numbers.
            self.update(last, |last| last.versions = last.versions.max(entry.versions));
        }
        if let Some(key) = entry.key.as_deref().and_then(ContentHash::from_hex)
            && self.claims.get(&key).is_some_and(|results| results.contains(&id))
        {
            self.claims.remove(&key);
        }
        self.release_segment(&packed)
    }

    /// Counts one tensor less in the entry's segment. Returns the segment if that was the last one.
    fn release_segment(&mut self, entry: &PackedEntry) -> Option<u64> {
        let number = entry.segment()?;
        let held = self.segments.get_mut(&number)?;
        held.uses -= 1;
        if held.uses > 0 {
            return None;
        }
        self.segments.remove(&number).map(|segment| segment.info.id)
    }

    fn put_note(&mut self, key: String, note: String) {
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

    /// The segments of all tensors.
    pub fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.segments.values()
    }

    pub(crate) fn has_segment(&self, segment: u64) -> bool {
        self.segments.contains_key(&segment)
    }

    /// The number of tensors.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// All tensors; the versions of a name in their order.
    pub fn entries(&self) -> impl Iterator<Item = Entry> {
        // A packed entry can always be read.
        self.entries.iter().filter_map(|(&at, packed)| packed.unpack(id_of(at)).ok())
    }

    /// The files of spilled tensors.
    pub fn files(&self) -> impl Iterator<Item = SpillFile> {
        let spilled = self.entries.iter().filter(|(_, packed)| packed.segment().is_none());
        spilled.filter_map(|(&at, packed)| packed.unpack(id_of(at)).ok()?.spilled)
    }

    /// The keys of computations that are done, and their results.
    pub fn claims(&self) -> impl Iterator<Item = (&ContentHash, &[Id])> {
        self.claims.iter().map(|(key, results)| (key, &results[..]))
    }

    /// The keys that sessions compute, in hexadecimal.
    pub fn claimed(&self) -> impl Iterator<Item = &str> {
        self.claimed.iter().map(String::as_str)
    }

    /// Keys and notes, in hexadecimal.
    pub fn notes(&self) -> impl Iterator<Item = (&str, &str)> {
        self.notes.iter().map(|(key, note)| (key.as_str(), note.as_str()))
    }

    /// Sessions and their clients.
    pub fn sessions(&self) -> impl Iterator<Item = (u64, SessionClient)> {
        self.sessions.iter().map(|(session, client)| (*session, *client))
    }

    /// Sessions without a connection, and their leases.
    pub fn left(&self) -> impl Iterator<Item = (u64, &[Id])> {
        self.left.iter().map(|(session, leases)| (*session, &leases[..]))
    }

    /// The highest id that the store has given to a name.
    pub fn name_ids(&self) -> u64 {
        self.name_ids
    }
}

impl Segment {
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

pub(super) fn shared(fd: OwnedFd) -> Arc<File> {
    Arc::new(fd.into())
}
