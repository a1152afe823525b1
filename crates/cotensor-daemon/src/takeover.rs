//! Where another server ended: verifying what it left, and waiting for those who use it.

use crate::index::Slots;
use crate::keeper::{Change, Entry, Kept};
use crate::segment::{Part, Sealed, Slab};
use crate::{Config, Daemon};
use cotensor_client::hex;
use cotensor_client::protocol::{Id, RESUME_TOKEN, Resume};
use cotensor_core::{ContentHash, Error, ErrorKind, Layout, Result, Segment};
use cotensor_memory::Index;
use cotensor_store::home::{Charge, Record};
use cotensor_store::{
    Claim, EmbeddedStore, Holder, Key, Lease, Restored, Retention, Share, Store, TensorId, Ticket, Watch,
};
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;
use subtle::ConstantTimeEq;

/// How long tensors that go with their last lease wait for those who lease them.
const GRACE: Duration = Duration::from_secs(5);
/// The most leases that one session can take up again.
pub(crate) const RESUMED_MAX: usize = 100_000;

/// What is told of changes: clients through the index, and the keeper.
pub(crate) struct Changes {
    pub(crate) slots: Slots,
    pub(crate) kept: Option<Arc<Kept>>,
}

impl Watch for Changes {
    fn listing(&self, record: &Record) {
        self.slots.end(record.id().slot);
        if let Some(kept) = &self.kept {
            kept.listing(record);
        }
    }

    fn hidden(&self, record: &Record) {
        self.slots.end(record.id().slot);
        self.tell(Change::Hidden(record.id().into()));
    }

    fn gone(&self, record: &Record) {
        self.slots.gone(record);
        if let Some(kept) = &self.kept {
            kept.gone(record);
        }
    }

    fn abandoned(&self, key: &Key) {
        self.tell(Change::Abandoned(key.0.to_string()));
    }

    fn finished(&self, key: &Key, results: &[TensorId]) {
        let results = results.iter().map(|id| (*id).into()).collect();
        self.tell(Change::Finished { key: key.0.to_string(), results });
    }
}

impl Changes {
    pub(crate) fn tell(&self, change: Change) {
        if let Some(kept) = &self.kept {
            kept.tell(change);
        }
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
    pub(crate) slabs: HashMap<Inode, (Arc<Slab>, Share)>,
    /// Claims whose sessions have not come back: nobody else computes them meanwhile.
    tickets: HashMap<Key, Ticket>,
}

/// For each lease and each claim that a session wants to take up again, what it is now.
pub(crate) type TakenUp = (Vec<Option<Id>>, Vec<Option<u64>>);

enum Taken {
    Sealed(Arc<Sealed>),
    Slab(Arc<Slab>),
}

impl Daemon {
    /// A daemon with what a former one left.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn take_over(config: Config, index: Index, kept: Arc<Kept>) -> Result<Arc<Self>> {
        let daemon = Self::with(config, index, Some(Arc::clone(&kept)))?;
        let orphans = restore(&daemon.store, &kept);
        orphans.slabs.iter().for_each(|(inode, (slab, _))| daemon.slabs.restore(*inode, slab));
        *daemon.orphans() = orphans;
        let waiting = Arc::clone(&daemon);
        let grace = std::thread::Builder::new().name("grace".to_owned());
        let grace = grace.spawn(move || {
            std::thread::sleep(GRACE);
            let orphans = std::mem::take(&mut *waiting.orphans());
            drop(orphans);
        });
        drop(grace.map_err(|error| Error::io("taking over", &error))?);
        Ok(daemon)
    }

    /// Leases again what a session of a former daemon leased, and takes its claims up.
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
            let key = Key(ContentHash::from_hex(key)?);
            let waiting = self.orphans().tickets.remove(&key);
            let ticket = waiting.or_else(|| claim(&self.store, &key, &holder))?;
            session.lock().tickets.add(ticket).ok()
        };
        Ok((leases, resume.claims.iter().map(take_up).collect()))
    }
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
    let fd = segment.fd.try_clone().map_err(|error| Error::io("duplicating a descriptor", &error))?;
    let len = usize::try_from(segment.info.bytes).map_err(|_| Error::unsupported("too long"))?;
    Ok(match segment.info.slab {
        true => Taken::Slab(Arc::new(Slab::new(fd, len, Arc::clone(charge))?)),
        false => Taken::Sealed(Arc::new(Sealed::new(fd, len)?)),
    })
}

/// Lists again what the ledger knows, after verifying it. What cannot be verified is left out, and said so.
fn restore(store: &EmbeddedStore, kept: &Kept) -> Orphans {
    let (mut segments, mut orphans) = (HashMap::new(), Orphans::default());
    let holder = store.holder("taken over");
    let mut state = kept.state();
    for segment in state.ledger.segments() {
        let charge = store.take_over(segment.info.bytes);
        match take(segment, &charge) {
            Ok(taken) => drop(segments.insert(segment.info.id, (taken, charge))),
            Err(error) => tracing::error!("a segment was not taken over: {error}"),
        }
    }
    for (number, (taken, charge)) in &segments {
        match taken {
            Taken::Sealed(sealed) => state.number(sealed.fd().map_or(-1, |fd| fd.as_raw_fd()), *number),
            Taken::Slab(slab) => {
                state.number(slab.fd().as_raw_fd(), *number);
                if let Ok(inode) = inode(slab.fd()) {
                    orphans.slabs.insert(inode, (Arc::clone(slab), store.share_of(charge)));
                }
            }
        }
    }
    store.skip_slots(state.ledger.slots());
    let entries: Vec<Entry> = state.ledger.entries().collect();
    let claims: Vec<(String, Vec<Id>)> =
        state.ledger.claims().map(|(key, ids)| (key.to_owned(), ids.to_vec())).collect();
    let claimed: Vec<Key> = state.ledger.claimed().filter_map(ContentHash::from_hex).map(Key).collect();
    let notes: Vec<(String, String)> =
        state.ledger.notes().map(|(key, note)| (key.to_owned(), note.to_owned())).collect();
    drop(state);

    let mut leases = HashMap::new();
    for entry in entries {
        let (id, name) = (entry.id, entry.spec.name.clone());
        match list(store, entry, &segments, &holder) {
            Ok(lease) => drop(leases.insert(id, lease)),
            Err(error) => {
                tracing::error!("{name} was not taken over: {error}");
                kept.tell(Change::Gone(id));
            }
        }
    }
    for (key, ids) in claims {
        let results: Option<Vec<Lease>> = ids.iter().map(|id| leases.get(id)?.try_clone().ok()).collect();
        if let (Some(key), Some(results)) = (ContentHash::from_hex(&key), results) {
            store.restore_claim(Key(key), &results);
        }
    }
    orphans.tickets = claimed.into_iter().filter_map(|key| Some((key, claim(store, &key, &holder)?))).collect();
    for (key, note) in notes {
        if let (Some(key), Some(note)) = (ContentHash::from_hex(&key), hex::decode(&note)) {
            store.remember(&key, &note);
        }
    }
    // What is kept anyway need not wait for anybody.
    let kept = |lease: &Lease| {
        matches!(lease.spec().retention, Retention::Cached { .. }) && store.newest(lease.name()) == Some(lease.id())
    };
    orphans.leases = leases.into_values().filter(|lease| !kept(lease)).collect();
    orphans
}

fn list(
    store: &EmbeddedStore,
    entry: Entry,
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
    let (id, charge, versions, current) = (entry.id.into(), Arc::clone(charge), entry.versions, entry.current);
    store.restore(Restored { id, spec, layout, segment, charge, key, versions, current }, holder)
}
