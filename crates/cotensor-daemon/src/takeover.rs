//! Where another server ended: verifying what it left, and waiting for those who use it.

use crate::handlers::claim_key;
use crate::index::Slots;
use crate::keeper::{Change, Entry, Kept, Member, process_state};
use crate::segment::{Part, Sealed, Slab};
use crate::spill::{Files, SpillFile};
use crate::{Config, Daemon};
use cotensor_client::hex;
use cotensor_client::protocol::{Id, RESUME_TOKEN, Resume};
use cotensor_core::{ContentHash, Device, Error, ErrorKind, Layout, Result, Segment, size};
use cotensor_memory::SharedIndex;
use cotensor_store::backend::{Charge, Record};
use cotensor_store::{
    BlobStore, Claim, EmbeddedStore, Holder, Key, Lease, RestoredTensor, SegmentCharge, SpilledSegment, SpilledTensor,
    StoreObserver, TensorId, TensorStore, Ticket,
};
use rustix::process::{Pid, test_kill_process};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};
use subtle::ConstantTimeEq;

/// How long tensors that go with their last lease wait for those who lease them, at least: a child of a process that has
/// died may have its leases.
const GRACE: Duration = Duration::from_millis(500);
/// The same at most, for sessions whose processes live: they may be stopped, or wait for their turn.
const GRACE_MAX: Duration = Duration::from_secs(60);
/// The most processes that are named.
const NAMED_MAX: usize = 5;
/// Between two looks at the processes.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// The most leases that one session can take up again.
pub(crate) const RESUMED_MAX: usize = 100_000;

/// What is told of changes: clients through the index, and the keeper.
pub(crate) struct Changes {
    pub(crate) slots: Slots,
    pub(crate) kept: Option<Arc<Kept>>,
    pub(crate) files: Option<Arc<Files>>,
    /// What a former daemon left and nobody has come for.
    pub(crate) orphans: Mutex<Orphans>,
}

impl StoreObserver for Changes {
    fn on_publish(&self, record: &Record) {
        self.slots.end(record.id().slot);
        if let Some(kept) = &self.kept {
            kept.listing(record);
        }
    }

    fn on_unlist(&self, record: &Record) {
        self.slots.end(record.id().slot);
        self.tell(Change::Hidden(record.id().into()));
    }

    fn on_free(&self, record: &Record) {
        self.slots.gone(record);
        if let Some(kept) = &self.kept {
            kept.gone(record);
        }
    }

    fn on_spill(&self, record: &Record, spilled: &dyn SpilledSegment) {
        self.slots.gone(record);
        let file = self.files.as_ref().and_then(|files| files.file(spilled.number()));
        if let (Some(kept), Some(file)) = (&self.kept, file) {
            kept.spilled(record, file);
        }
    }

    fn on_spilled_free(&self, id: TensorId) {
        self.tell(Change::Gone(id.into()));
    }

    fn on_abandon(&self, key: &Key) {
        self.tell(Change::Abandoned(key.0.to_string()));
    }

    fn on_results(&self, key: &Key, results: &[TensorId]) {
        let results = results.iter().map(|id| (*id).into()).collect();
        self.tell(Change::Finished { key: key.0.to_string(), results });
    }

    fn retained_memory(&self) -> Option<String> {
        self.orphans().reason(Instant::now())
    }
}

impl Changes {
    pub(crate) fn tell(&self, change: Change) {
        if let Some(kept) = &self.kept {
            kept.tell(change);
        }
    }

    pub(crate) fn orphans(&self) -> MutexGuard<'_, Orphans> {
        self.orphans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A memfd's identity, by which a session's slab is known again.
pub(crate) type Inode = (u64, u64);

/// The identity of whatever `fd` is.
///
/// # Errors
/// `Io`.
pub(crate) fn inode(fd: impl AsFd) -> Result<Inode> {
    let found = rustix::fs::fstat(fd).map_err(|error| Error::io("looking at a segment", &error.into()))?;
    Ok((found.st_dev as u64, found.st_ino as u64))
}

/// What waits for its users.
#[derive(Default)]
pub(crate) struct Orphans {
    leases: Vec<Lease>,
    /// Slabs whose sessions have not come back.
    slabs: HashMap<Inode, (Arc<Slab>, SegmentCharge)>,
    /// Claims whose sessions have not come back: nobody else computes them meanwhile.
    tickets: HashMap<Key, Ticket>,
    /// Sessions that have not come back, and their processes.
    sessions: HashMap<u64, Member>,
    /// When nobody is waited for any more.
    until: Option<Instant>,
}

/// For each lease and each claim that a session wants to take up again, what it is now.
pub(crate) type TakenUp = (Vec<Option<Id>>, Vec<Option<u64>>);

impl Orphans {
    /// The slab that waited, if one did: its session has it now.
    pub(crate) fn take_slab(&mut self, inode: Inode) -> Option<(Arc<Slab>, SegmentCharge)> {
        self.slabs.remove(&inode)
    }

    /// Why all this is kept still: for people.
    fn reason(&self, now: Instant) -> Option<String> {
        let left = self.until.filter(|_| !self.leases.is_empty() || !self.slabs.is_empty())?;
        let processes: BTreeSet<i32> = self.sessions.values().map(|member| member.pid).filter(|pid| *pid > 0).collect();
        let mut named: Vec<String> = processes.iter().take(NAMED_MAX).map(i32::to_string).collect();
        if self.sessions.values().any(|member| member.pid <= 0) {
            named.push("one of another namespace".to_owned());
        }
        if processes.len() > NAMED_MAX {
            named.push(format!("{} more", processes.len() - NAMED_MAX));
        }
        let seconds = left.saturating_duration_since(now).as_secs() + 1;
        (!named.is_empty()).then(|| {
            format!(
                "what was used when the server was replaced is kept until these processes are back, for {seconds} s at \
                 most: {}",
                named.join(", ")
            )
        })
    }
}

enum Taken {
    Sealed(Arc<Sealed>),
    Slab(Arc<Slab>),
}

impl Daemon {
    /// A daemon with what a former one left.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn take_over(config: Config, index: SharedIndex, kept: Arc<Kept>) -> Result<Arc<Self>> {
        let daemon = Self::with(config, index, Some(Arc::clone(&kept)))?;
        let mut orphans = restore(&daemon.store, &kept, daemon.changes.files.as_ref());
        let (used, max) = (daemon.store.memory_usage_bytes(), daemon.config.max_memory_bytes);
        if used > max {
            tracing::warn!(
                "{} were taken over, and --max-memory allows {}: nothing new fits until enough of that has gone",
                size(used),
                size(max)
            );
        }
        let start = Instant::now();
        orphans.until = Some(start + GRACE_MAX);
        orphans.slabs.iter().for_each(|(inode, (slab, _))| daemon.slabs.restore(*inode, slab));
        *daemon.orphans() = orphans;
        let waiting = Arc::clone(&daemon);
        let grace = std::thread::Builder::new().name("grace".to_owned());
        let grace = grace.spawn(move || {
            while start.elapsed() < GRACE_MAX {
                std::thread::sleep(LOOK_AGAIN);
                let missing: Vec<i32> = waiting.orphans().sessions.values().map(|member| member.pid).collect();
                if missing.is_empty() || (start.elapsed() >= GRACE && !missing.into_iter().any(lives)) {
                    break;
                }
            }
            let gone: Vec<u64> = waiting.orphans().sessions.keys().copied().collect();
            gone.into_iter().for_each(|session| waiting.changes.tell(Change::Left(session)));
            let orphans = std::mem::take(&mut *waiting.orphans());
            drop(orphans);
        });
        drop(grace.map_err(|error| Error::io("taking over", &error))?);
        Ok(daemon)
    }

    /// Leases again what a session of a former daemon leased, and takes its claims up. It [is back](Self::is_back) once the
    /// keeper knows the session that has all that now.
    ///
    /// # Errors
    /// `Refused` for a token that no daemon of this keeper gave, `Invalid` for too many leases.
    pub(crate) fn resume(&self, session: &crate::session::Session, resume: &Resume) -> Result<TakenUp> {
        let token = self.token(resume.session);
        if !bool::from(token.as_bytes().ct_eq(resume.token.as_bytes())) {
            return Err(Error::new(ErrorKind::Refused, "not this session's token").in_field(RESUME_TOKEN));
        }
        if resume.leases.len() > RESUMED_MAX || resume.claims.len() > crate::session::OPEN_MAX {
            return Err(Error::invalid(format!("more than {RESUMED_MAX} leases")).in_field("resume.leases"));
        }
        let mut leases = Vec::with_capacity(resume.leases.len());
        for resumed in &resume.leases {
            let holder = session.holder(&resumed.holder)?;
            let lease = self.store.lease_version(&resumed.name, resumed.version, &holder);
            leases.push(lease.ok().map(|lease| session.take_up(lease, &holder)).transpose()?);
        }
        let holder = session.holder("")?;
        let take_up = |key: &String| {
            let key = claim_key(key).ok()?;
            let waiting = self.orphans().tickets.remove(&key);
            let ticket = waiting.or_else(|| claim(&self.store, &key, &holder))?;
            session.lock().tickets.add(ticket).ok()
        };
        let claims = resume.claims.iter().map(take_up).collect();
        Ok((leases, claims))
    }
}

impl Daemon {
    /// Nobody waits any more for the session that a client had, under the number that the client knows.
    pub(crate) fn is_back(&self, session: u64) {
        let same = |number: &u64, member: &mut Member| *number == session || member.was == Some(session);
        let back: Vec<_> = self.orphans().sessions.extract_if(same).collect();
        back.into_iter().for_each(|(session, _)| self.changes.tell(Change::Left(session)));
    }
}

/// Whether a process lives, as far as this one can tell: one that has died and was not waited for does not; one of another
/// namespace, whose number is 0 here, may.
fn lives(pid: i32) -> bool {
    if pid <= 0 {
        return true;
    }
    let exists = Pid::from_raw(pid).is_some_and(|pid| test_kill_process(pid) != Err(rustix::io::Errno::SRCH));
    exists && !matches!(process_state(pid.unsigned_abs()), Some('Z' | 'X'))
}

/// The right to compute `key`, unless it is somebody's, or computed.
fn claim(store: &EmbeddedStore, key: &Key, holder: &Holder) -> Option<Ticket> {
    match store.poll_claim(key, holder, Waker::noop()) {
        Poll::Ready(Claim::Compute(ticket)) => Some(ticket),
        _ => None,
    }
}

/// A segment, verified.
fn take(segment: &crate::keeper::Segment, charge: &Arc<Charge>) -> Result<Taken> {
    let file = Arc::clone(&segment.file);
    let len = usize::try_from(segment.info.bytes).map_err(|_| Error::unsupported("too long"))?;
    Ok(match segment.info.slab {
        true => Taken::Slab(Arc::new(Slab::new(file, len, Arc::clone(charge))?)),
        false => Taken::Sealed(Arc::new(Sealed::known(file, len)?)),
    })
}

/// Lists again what the ledger knows, after verifying it. What cannot be verified is left out, and said so.
fn restore(store: &EmbeddedStore, kept: &Kept, files: Option<&Arc<Files>>) -> Orphans {
    let (mut segments, mut orphans) = (HashMap::new(), Orphans::default());
    let holder = store.holder("taken over");
    let mut state = kept.state();
    for segment in state.ledger.segments() {
        let charge = store.charge_existing(Device::Cpu, segment.info.bytes);
        match charge.and_then(|charge| Ok((take(segment, &charge)?, charge))) {
            Ok(taken) => drop(segments.insert(segment.info.id, taken)),
            Err(error) => tracing::error!("a segment was not taken over: {error}"),
        }
    }
    for (number, (taken, charge)) in &segments {
        match taken {
            Taken::Sealed(sealed) => state.number(sealed.fd().map_or(-1, |fd| fd.as_raw_fd()), *number),
            Taken::Slab(slab) => {
                state.number(slab.fd().as_raw_fd(), *number);
                if let Ok(inode) = inode(slab.fd()) {
                    orphans.slabs.insert(inode, (Arc::clone(slab), store.reopen_segment(charge)));
                }
            }
        }
    }
    store.skip_slots(state.ledger.slots());
    orphans.sessions = state.ledger.sessions().collect();
    // One after the other: of hundreds of thousands, all at once would take more memory than is kept of them.
    let (mut leases, mut spilled, mut refused) = (HashMap::new(), Vec::new(), Vec::new());
    for entry in state.ledger.entries() {
        if entry.spilled.is_some() {
            spilled.push(entry);
            continue;
        }
        match list(store, &entry, &segments, &holder) {
            Ok(lease) => drop(leases.insert(entry.id, lease)),
            Err(error) => {
                tracing::error!("{} was not taken over: {error}", entry.spec.name);
                refused.push(entry.id);
            }
        }
    }
    let claims: Vec<(ContentHash, Vec<Id>)> = state.ledger.claims().map(|(key, ids)| (*key, ids.to_vec())).collect();
    let claimed: Vec<Key> = state.ledger.claimed().filter_map(ContentHash::from_hex).map(Key).collect();
    let notes: Vec<(String, String)> =
        state.ledger.notes().map(|(key, note)| (key.to_owned(), note.to_owned())).collect();
    drop(state);

    let (refused_count, spilled_count) = (refused.len(), spilled.iter().filter(|entry| entry.current).count());
    refused.into_iter().for_each(|id| kept.tell(Change::Gone(id)));
    let spilled = restore_spilled(store, kept, files, spilled);
    let lost = refused_count + spilled_count - spilled.len();
    for (key, ids) in claims {
        if ids.iter().any(|id| spilled.contains(id)) {
            store.restore_spilled_claim(Key(key), ids.into_iter().map(TensorId::from).collect());
            continue;
        }
        let results: Option<Vec<Lease>> = ids.iter().map(|id| leases.get(id)?.try_clone().ok()).collect();
        if let Some(results) = results {
            store.restore_claim(Key(key), &results);
        }
    }
    orphans.tickets = claimed.into_iter().filter_map(|key| Some((key, claim(store, &key, &holder)?))).collect();
    for (key, note) in notes {
        if let (Some(key), Some(note)) = (ContentHash::from_hex(&key), hex::decode(&note)) {
            store.put_note(&key, &note);
        }
    }
    let (mut current, mut old, back) = (0, 0, spilled.len());
    for lease in leases.into_values() {
        let is_current = store.newest(lease.name()) == Some(lease.id());
        match is_current {
            true => current += 1,
            false => old += 1,
        }
        // What is kept anyway need not wait for anybody.
        if !(is_current && lease.is_cached()) {
            orphans.leases.push(lease);
        }
    }
    let total = current + old + back + lost;
    if total > 0 {
        tracing::info!(
            "{total} tensors were taken over: {current} current, {old} removed or superseded, {back} spilled, {lost} lost"
        );
    }
    orphans
}

/// Lists again what was spilled, as far as that is possible; returns which tensors that are.
fn restore_spilled(store: &EmbeddedStore, kept: &Kept, files: Option<&Arc<Files>>, entries: Vec<Entry>) -> HashSet<Id> {
    let mut by_file: HashMap<u64, (SpillFile, Vec<Entry>)> = HashMap::new();
    for entry in entries {
        // Published anew, and the server died before it said that this is gone.
        if !entry.current {
            kept.tell(Change::Gone(entry.id));
        } else if let Some(file) = entry.spilled.clone() {
            by_file.entry(file.number).or_insert_with(|| (file, Vec::new())).1.push(entry);
        }
    }
    let mut restored = HashSet::new();
    let (found, tensors): (Vec<SpillFile>, Vec<Vec<Entry>>) = by_file.into_values().unzip();
    let spilled = files.map(|files| files.take_up(found)).unwrap_or_default();
    let mut spilled = spilled.into_iter();
    for entries in tensors {
        let ids: Vec<Id> = entries.iter().map(|entry| entry.id).collect();
        let outcome =
            spilled.next().ok_or_else(|| Error::not_found("there is no --spill any more")).and_then(|spilled| {
                store.restore_spilled(entries.into_iter().map(absent).collect::<Result<_>>()?, spilled)
            });
        match outcome {
            Ok(()) => restored.extend(ids),
            Err(error) => {
                tracing::error!("{} spilled tensors were not taken over: {error}", ids.len());
                ids.into_iter().for_each(|id| kept.tell(Change::Gone(id)));
            }
        }
    }
    restored
}

fn absent(entry: Entry) -> Result<(SpilledTensor, u64)> {
    let spec = entry.spec.to_domain()?;
    let layout = Layout::contiguous(spec.dtype, &spec.shape)?.moved(entry.offset)?;
    let key = entry.key.as_deref().and_then(ContentHash::from_hex).map(Key);
    Ok((SpilledTensor { id: entry.id.into(), spec, layout, key, created: entry.created() }, entry.versions))
}

fn list(
    store: &EmbeddedStore,
    entry: &Entry,
    segments: &HashMap<u64, (Taken, Arc<Charge>)>,
    holder: &Holder,
) -> Result<Lease> {
    let spec = entry.spec.to_domain()?;
    let layout = Layout::contiguous(spec.dtype, &spec.shape)?;
    let (taken, charge) =
        segments.get(&entry.segment).ok_or_else(|| Error::new(ErrorKind::Refused, "its memory was refused"))?;
    let (segment, layout): (Arc<dyn Segment>, Layout) = match taken {
        Taken::Slab(slab) => (Arc::new(Part::new(Arc::clone(slab), entry.offset, layout.size_bytes())?), layout),
        Taken::Sealed(sealed) => (Arc::clone(sealed) as Arc<dyn Segment>, layout.moved(entry.offset)?),
    };
    let key = entry.key.as_deref().and_then(ContentHash::from_hex).map(Key);
    let (id, created, charge) = (entry.id.into(), entry.created(), Arc::clone(charge));
    let (versions, state) = (entry.versions, entry.state());
    store.restore(RestoredTensor { id, spec, layout, segment, charge, key, versions, state, created }, holder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dead_do_not_live() {
        assert!(lives(std::process::id() as i32));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id() as i32;
        let start = Instant::now();
        while lives(pid) && start.elapsed() < GRACE_MAX {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!lives(pid), "dead, though nobody has waited for it");
        child.wait().unwrap();
        assert!(!lives(pid) && lives(0), "of another namespace nothing is known");
    }
}
