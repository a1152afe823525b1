//! Contents by hash: each held once, however many ask, packed into one segment when they come together.

use crate::budget::Charge;
use crate::embedded::EmbeddedStore;
use crate::{Claim, ContentSource, ContentSpec, CopyReason, Holder, Key, Lease, Retention, Store, TensorSpec, Ticket};
use cotensor_core::{
    ALIGNMENT, ContentHash, DType, Error, Hasher, Kind, Layout, Located, Result, SegmentMut, TENSOR_BYTES_MAX,
};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// A content that this request has to provide.
struct Missing {
    ticket: Ticket,
    hash: ContentHash,
    /// Its first place in the request.
    index: usize,
    len: usize,
}

pub(crate) fn lease_contents(
    store: &EmbeddedStore,
    specs: &[ContentSpec],
    source: &mut dyn ContentSource,
    holder: &Holder,
) -> Result<Vec<Lease>> {
    let layouts: Vec<Layout> =
        specs.iter().map(|spec| Layout::contiguous(spec.dtype, &spec.shape)).collect::<Result<_>>()?;
    // In the order of their hashes: two requests that claim in one order cannot wait for each other in a ring.
    let mut wanted: BTreeMap<ContentHash, usize> = BTreeMap::new();
    for (index, spec) in specs.iter().enumerate() {
        let first = *wanted.entry(spec.hash).or_insert(index);
        if layouts[first].size_bytes() != layouts[index].size_bytes() {
            return Err(Error::invalid(format!("one content ({}) asked for in two sizes", spec.hash.short())));
        }
    }
    let mut held: HashMap<ContentHash, Lease> = HashMap::new();
    let mut missing = Vec::new();
    for (&hash, &index) in &wanted {
        match store.claim(&key(&hash), holder)? {
            Claim::Ready(mut leases) => {
                let lease =
                    leases.pop().ok_or_else(|| Error::not_found(format!("content {} was lost", hash.short())))?;
                held.insert(hash, lease);
            }
            Claim::Compute(ticket) => missing.push(Missing { ticket, hash, index, len: layouts[index].size_bytes() }),
        }
    }
    provide(store, specs, missing, source, holder, &mut held)?;
    specs.iter().zip(layouts).map(|(spec, layout)| looked_at(&held[&spec.hash], layout)).collect()
}

fn key(hash: &ContentHash) -> Key {
    Key(Hasher::new("cotensor weight v1").field(hash.as_bytes()).finish())
}

/// The same bytes with the dtype and shape that were asked for.
fn looked_at(lease: &Lease, layout: Layout) -> Result<Lease> {
    let (asked, held) = (layout.size_bytes(), lease.record.layout.size_bytes());
    if asked != held {
        return Err(Error::invalid(format!("{} has {held} bytes, asked for as {asked}", lease.name())));
    }
    let mut lease = lease.try_clone()?;
    let layout = layout.moved(lease.record.layout.offset_bytes())?;
    lease.layout = (layout != lease.record.layout).then(|| Box::new(layout));
    Ok(lease)
}

/// Gets what is missing: from the cache where it has it, else from `source` into one new pack.
fn provide(
    store: &EmbeddedStore,
    specs: &[ContentSpec],
    missing: Vec<Missing>,
    source: &mut dyn ContentSource,
    holder: &Holder,
    held: &mut HashMap<ContentHash, Lease>,
) -> Result<()> {
    let mut adopted = Vec::new();
    let mut unknown = Vec::new();
    for each in missing {
        match store.cache.as_ref().and_then(|cache| cache.find(&each.hash)) {
            Some(located) if located.1.len() == each.len => adopted.push((each, located)),
            _ => unknown.push(each),
        }
    }
    if !adopted.is_empty() {
        let charge = store.charge(adopted.iter().map(|(each, _)| each.len as u64).sum())?;
        for (each, located) in adopted {
            list(store, specs, each, located, &charge, Duration::ZERO, holder, held)?;
        }
    }
    if unknown.is_empty() {
        return Ok(());
    }
    let charge = store.charge(packed_bytes(&unknown)? as u64)?;
    let start = store.clock.now();
    let located = fill(store, &unknown, source)?;
    let each_took = store.clock.now().saturating_sub(start) / unknown.len() as u32;
    for (each, located) in unknown.into_iter().zip(located) {
        list(store, specs, each, located, &charge, each_took, holder, held)?;
    }
    Ok(())
}

fn fill(store: &EmbeddedStore, unknown: &[Missing], source: &mut dyn ContentSource) -> Result<Vec<Located>> {
    let entries: Vec<(ContentHash, usize)> = unknown.iter().map(|each| (each.hash, each.len)).collect();
    // Without room in the cache the weights still load, into memory of this process.
    if let Some(mut pack) = store.cache.as_ref().and_then(|cache| cache.begin(&entries).ok()) {
        for (index, each) in unknown.iter().enumerate() {
            source.fill(each.index, pack.entry_mut(index))?;
        }
        if let Ok(located) = pack.commit() {
            return Ok(located);
        }
    }
    let mut segment = store.memory.reserve(packed_bytes(unknown)?)?;
    let mut ranges = Vec::new();
    let mut offset = 0;
    for each in unknown {
        write(store, &mut *segment, offset, each, source)?;
        ranges.push(offset..offset + each.len);
        offset += padded(each.len);
    }
    let segment = segment.freeze()?;
    Ok(ranges.into_iter().map(|range| (Arc::clone(&segment), range)).collect())
}

fn write(
    store: &EmbeddedStore,
    segment: &mut dyn SegmentMut,
    offset: usize,
    each: &Missing,
    source: &mut dyn ContentSource,
) -> Result<()> {
    if let Some(bytes) = segment.bytes_mut() {
        return source.fill(each.index, &mut bytes[offset..offset + each.len]);
    }
    let mut copy = vec![0; each.len];
    source.fill(each.index, &mut copy)?;
    store.record_copy(CopyReason::DeviceTransfer, each.len);
    segment.write_at(offset, &copy)
}

#[allow(clippy::too_many_arguments, reason = "one step of provide, called at its two ends")]
fn list(
    store: &EmbeddedStore,
    specs: &[ContentSpec],
    mut each: Missing,
    (segment, range): Located,
    charge: &Arc<Charge>,
    recompute: Duration,
    holder: &Holder,
    held: &mut HashMap<ContentHash, Lease>,
) -> Result<()> {
    let asked = &specs[each.index];
    let aligned = range.start.is_multiple_of(asked.dtype.size_bytes());
    let (dtype, shape) = if aligned { (asked.dtype, asked.shape.clone()) } else { (DType::U8, vec![each.len]) };
    let layout = Layout::contiguous(dtype, &shape)?.moved(range.start)?;
    let spec = TensorSpec {
        name: format!("weight/{}", each.hash),
        dtype,
        shape,
        kind: Kind::Weight,
        space: None,
        producer: asked.producer.clone(),
        retention: Retention::Cached { recompute },
        provenance: Some(each.hash),
    };
    let lease = store.list(spec, layout, segment, Arc::clone(charge), Some(each.ticket.key()), holder.id)?;
    each.ticket.finish(std::slice::from_ref(&lease));
    held.insert(each.hash, lease);
    Ok(())
}

fn padded(len: usize) -> usize {
    len.next_multiple_of(ALIGNMENT)
}

/// Bytes of one segment with room for all.
fn packed_bytes(unknown: &[Missing]) -> Result<usize> {
    unknown
        .iter()
        .try_fold(0usize, |total, each| total.checked_add(padded(each.len)))
        .filter(|&total| total as u64 <= TENSOR_BYTES_MAX)
        .ok_or_else(|| Error::invalid(format!("{} contents together exceed {TENSOR_BYTES_MAX} bytes", unknown.len())))
}
