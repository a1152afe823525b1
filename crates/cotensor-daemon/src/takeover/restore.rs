//! Restores the store of a former server from the journal. Every segment is verified first.

use crate::config::Config;
use crate::daemon::Daemon;
use crate::spill_files::Files;
use crate::state::Orphans;
use crate::state::segment::{Part, Slab, inode, known_segment};
use cotensor_client::hex;
use cotensor_client::protocol::Id;
use cotensor_core::{ContentHash, Error, ErrorKind, Layout, Result, Segment, size};
use cotensor_memory::SharedIndex;
use cotensor_store::backend::Charge;
use cotensor_store::{
    BlobStore, Claim, ComputationStore, Holder, Key, Lease, LocalStore, RestoredTensor, SpilledTensor, TensorId,
    TensorStore, Ticket,
};
use cotensor_supervisor::{Entry, Event, Segment as JournalSegment, SpillFile, SupervisorLink};
use std::collections::{HashMap, HashSet};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

impl Daemon {
    /// A daemon with the state of a former server.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn take_over(config: Config, index: SharedIndex, link: Arc<SupervisorLink>) -> Result<Arc<Self>> {
        let daemon = Self::with(config, index, Some(Arc::clone(&link)))?;
        let mut orphans = restore(&daemon.store, &link, daemon.files.as_ref());
        let (used, max) = (daemon.store.memory_usage_bytes(), daemon.config.max_memory_bytes);
        if used > max {
            tracing::warn!(
                "{} were taken over, and --max-memory allows {}: new tensors fit only after enough of them are freed",
                size(used),
                size(max)
            );
        }
        orphans.begin_wait(daemon.clock.now());
        orphans.slabs.iter().for_each(|(inode, (slab, _))| daemon.slabs.restore(*inode, slab));
        if !orphans.sessions.is_empty() {
            daemon.broker.begin_settling();
        }
        *daemon.orphans() = orphans;
        Ok(daemon)
    }
}

enum Taken {
    Own(Arc<dyn Segment>),
    Slab(Arc<Slab>),
}

/// Verifies a segment.
fn take(segment: &JournalSegment, charge: &Arc<Charge>) -> Result<Taken> {
    let file = Arc::clone(&segment.file);
    let len = usize::try_from(segment.info.bytes).map_err(|_| Error::unsupported("too long"))?;
    Ok(if segment.info.slab {
        Taken::Slab(Arc::new(Slab::new(file, len, Arc::clone(charge))?))
    } else {
        Taken::Own(known_segment(file, len, segment.info.device)?)
    })
}

/// Restores the tensors of the journal after verifying them. A tensor that fails is logged and left out.
fn restore(store: &LocalStore, link: &SupervisorLink, files: Option<&Arc<Files>>) -> Orphans {
    let (mut segments, mut orphans) = (HashMap::new(), Orphans::default());
    let holder = store.holder("taken over");
    let mut state = link.state();
    for segment in state.journal().segments() {
        let charge = store.charge_existing(segment.info.device, segment.info.bytes);
        match charge.and_then(|charge| Ok((take(segment, &charge)?, charge))) {
            Ok(taken) => drop(segments.insert(segment.info.id, taken)),
            Err(error) => tracing::error!("a segment was not taken over: {error}"),
        }
    }
    for (number, (taken, charge)) in &segments {
        match taken {
            Taken::Own(segment) => state.enter_segment(segment.fd().map_or(-1, |fd| fd.as_raw_fd()), *number),
            Taken::Slab(slab) => {
                state.enter_segment(slab.fd().as_raw_fd(), *number);
                // The client of a slab on a device opens no slab again, so its tensors alone keep it.
                if slab.device().is_host()
                    && let Ok(inode) = inode(slab.fd())
                {
                    orphans.slabs.insert(inode, (Arc::clone(slab), store.reopen_segment(charge)));
                }
            }
        }
    }
    store.skip_name_ids(state.journal().name_ids());
    orphans.sessions = state.journal().sessions().collect();
    // One at a time: hundreds of thousands of unpacked entries would take more memory than the packed ones.
    let (mut leases, mut spilled, mut refused) = (HashMap::new(), Vec::new(), Vec::new());
    for entry in state.journal().entries() {
        if entry.spilled.is_some() {
            spilled.push(entry);
            continue;
        }
        match restore_tensor(store, &entry, &segments, &holder) {
            Ok(lease) => drop(leases.insert(entry.id, lease)),
            Err(error) => {
                tracing::error!("{} was not taken over: {error}", entry.spec.name);
                refused.push(entry.id);
            }
        }
    }
    let left: Vec<(u64, Vec<Id>)> = state.journal().left().map(|(session, ids)| (session, ids.to_vec())).collect();
    let claims: Vec<(ContentHash, Vec<Id>)> = state.journal().claims().map(|(key, ids)| (*key, ids.to_vec())).collect();
    let claimed: Vec<Key> = state.journal().claimed().filter_map(ContentHash::from_hex).map(Key).collect();
    let notes: Vec<(String, String)> =
        state.journal().notes().map(|(key, note)| (key.to_owned(), note.to_owned())).collect();
    drop(state);

    let (refused_count, spilled_count) = (refused.len(), spilled.iter().filter(|entry| entry.current).count());
    refused.into_iter().for_each(|id| link.record(Event::Freed(id)));
    let spilled = restore_spilled(store, link, files, spilled);
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
    for (session, ids) in left {
        // A lease of its own for each: the time of a tensor begins again with the end of it.
        let leased = ids.iter().filter_map(|id| store.lease(leases.get(id)?.id(), &holder).ok()).collect();
        orphans.left.insert(session, leased);
    }
    let (mut current, mut old, back) = (0, 0, spilled.len());
    for lease in leases.into_values() {
        let is_current = store.newest(lease.name()) == Some(lease.id());
        if is_current {
            current += 1
        } else {
            old += 1
        }
        // Other cached tensors stay without a lease.
        if !(is_current && lease.is_cached()) || Orphans::needs_lease(&lease) {
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

/// Restores spilled tensors whose files are good. Returns those tensors.
fn restore_spilled(
    store: &LocalStore,
    link: &SupervisorLink,
    files: Option<&Arc<Files>>,
    entries: Vec<Entry>,
) -> HashSet<Id> {
    let mut by_file: HashMap<u64, (SpillFile, Vec<Entry>)> = HashMap::new();
    for entry in entries {
        // A newer version was published, and the server died before it reported the end of this one.
        if !entry.current {
            link.record(Event::Freed(entry.id));
        } else if let Some(file) = entry.spilled.clone() {
            by_file.entry(file.number).or_insert_with(|| (file, Vec::new())).1.push(entry);
        }
    }
    let mut restored = HashSet::new();
    let (found, tensors): (Vec<SpillFile>, Vec<Vec<Entry>>) = by_file.into_values().unzip();
    let spilled = files.map(|files| files.adopt(found)).unwrap_or_default();
    let mut spilled = spilled.into_iter();
    for entries in tensors {
        let ids: Vec<Id> = entries.iter().map(|entry| entry.id).collect();
        let outcome =
            spilled.next().ok_or_else(|| Error::not_found("this server has no --spill folder")).and_then(|spilled| {
                store.restore_spilled(entries.into_iter().map(spilled_tensor).collect::<Result<_>>()?, spilled)
            });
        match outcome {
            Ok(()) => restored.extend(ids),
            Err(error) => {
                tracing::error!("{} spilled tensors were not taken over: {error}", ids.len());
                ids.into_iter().for_each(|id| link.record(Event::Freed(id)));
            }
        }
    }
    restored
}

fn spilled_tensor(entry: Entry) -> Result<(SpilledTensor, u64)> {
    let spec = entry.spec.to_domain()?;
    let layout = spec.layout()?.moved(entry.offset)?;
    let key = entry.key.as_deref().and_then(ContentHash::from_hex).map(Key);
    Ok((
        SpilledTensor { id: entry.id.into(), spec, layout, key, created: entry.created(), left: entry.left() },
        entry.versions,
    ))
}

fn restore_tensor(
    store: &LocalStore,
    entry: &Entry,
    segments: &HashMap<u64, (Taken, Arc<Charge>)>,
    holder: &Holder,
) -> Result<Lease> {
    let spec = entry.spec.to_domain()?;
    let layout = spec.layout()?;
    let (taken, charge) =
        segments.get(&entry.segment).ok_or_else(|| Error::new(ErrorKind::Refused, "its segment was refused"))?;
    let (segment, layout): (Arc<dyn Segment>, Layout) = match taken {
        Taken::Slab(slab) => (Arc::new(Part::restored(Arc::clone(slab), entry.offset, layout.size_bytes())?), layout),
        Taken::Own(segment) => (Arc::clone(segment), layout.moved(entry.offset)?),
    };
    let key = entry.key.as_deref().and_then(ContentHash::from_hex).map(Key);
    let (id, created, charge) = (entry.id.into(), entry.created(), Arc::clone(charge));
    let (versions, state) = (entry.versions, entry.state());
    let left = entry.left();
    store.restore(RestoredTensor { id, spec, layout, segment, charge, key, versions, state, created, left }, holder)
}

/// The claim of `key`, unless another session has it or its results exist.
pub(super) fn claim(store: &LocalStore, key: &Key, holder: &Holder) -> Option<Ticket> {
    match store.claim_within(key, holder, Duration::ZERO) {
        Ok(Claim::Compute(ticket)) => Some(ticket),
        _ => None,
    }
}
