//! Requests for blobs: those that exist are leased, the others are provided by one caller.

use crate::blobs::{BlobPack, Missing, UploadPlan, blob_key, distinct, only, packed};
use crate::budget::TensorCharge;
use crate::computations::Waiter;
use crate::local::LocalStore;
use crate::{BlobSource, BlobSpec, Claim, ComputationStore, CopyReason, Holder, Lease, Publication, StoreReports};
use cotensor_core::{BlobLocation, ContentHash, Device, Result, Segment, SegmentMut};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

pub(crate) fn lease_blobs(
    store: &LocalStore,
    specs: &[BlobSpec],
    source: &mut dyn BlobSource,
    holder: &Holder,
) -> Result<Vec<Lease>> {
    let mut request = Request { store, specs, holder, held: HashMap::new() };
    let mut missing = Vec::new();
    for (hash, (index, len)) in distinct(specs)? {
        match store.claim(&blob_key(&hash, specs[index].device), holder)? {
            Claim::Ready(leases) => drop(request.held.insert(hash, only(leases, &hash)?)),
            Claim::Compute(ticket) => missing.push(Missing::new(ticket, hash, &specs[index], index, len)),
        }
    }
    request.provide(missing, source)?;
    specs.iter().map(|spec| request.held[&spec.hash].view_as(spec)).collect()
}

/// A request for blobs, and the leases that it has so far.
struct Request<'a> {
    store: &'a LocalStore,
    specs: &'a [BlobSpec],
    holder: &'a Holder,
    /// By the hashes of the blobs.
    held: HashMap<ContentHash, Lease>,
}

impl Request<'_> {
    /// Publishes the missing blobs: from the cache if it has them, else from `source` in one new segment.
    fn provide(&mut self, missing: Vec<Missing>, source: &mut dyn BlobSource) -> Result<()> {
        let (store, specs) = (self.store, self.specs);
        let Some(device) = missing.first().map(|each| specs[each.index].device) else { return Ok(()) };
        let mut adopted = Vec::new();
        let mut unknown = Vec::new();
        for each in missing {
            match cached(store, &each) {
                Some(located) if located.0.device() == device => adopted.push((each, located)),
                _ => unknown.push(each),
            }
        }
        if !adopted.is_empty() {
            let bytes = adopted.iter().fold(0u64, |total, (each, _)| total.saturating_add(each.len as u64));
            let charges = charges(store, device, bytes, specs, adopted.iter().map(|(each, _)| each))?;
            for ((each, located), charge) in adopted.into_iter().zip(charges) {
                self.publish(each, located, charge, Duration::ZERO)?;
            }
        }
        if unknown.is_empty() {
            return Ok(());
        }
        let (ranges, total) = packed(unknown.iter().map(|each| each.len))?;
        let charges = charges(store, device, total as u64, specs, &unknown)?;
        let start = store.clock.now();
        let located = fill(store, device, &unknown, ranges, total, source)?;
        let each_took = store.clock.now().saturating_sub(start) / unknown.len() as u32;
        for ((each, located), charge) in unknown.into_iter().zip(located).zip(charges) {
            self.publish(each, located, charge, each_took)?;
        }
        Ok(())
    }

    /// Publishes a blob that took `recompute` to provide, and leases it.
    fn publish(
        &mut self,
        mut each: Missing,
        (segment, range): BlobLocation,
        charge: TensorCharge,
        recompute: Duration,
    ) -> Result<()> {
        let (spec, layout) = each.tensor(&self.specs[each.index], &range, recompute)?;
        let terms = Publication { key: Some(each.ticket.key()), ..Publication::default() };
        let lease = self.store.publish_named(spec, layout, segment, charge, terms, self.holder)?;
        each.ticket.finish(std::slice::from_ref(&lease));
        self.held.insert(each.hash, lease);
        Ok(())
    }
}

/// A blob in the cache.
fn cached(store: &LocalStore, each: &Missing) -> Option<BlobLocation> {
    store.cache.as_ref()?.find(&each.hash).filter(|(_, range)| range.len() == each.len)
}

/// The charges of blobs in one segment of `bytes` bytes.
fn charges<'a>(
    store: &LocalStore,
    device: Device,
    bytes: u64,
    specs: &[BlobSpec],
    contents: impl IntoIterator<Item = &'a Missing>,
) -> Result<Vec<TensorCharge>> {
    let segment = store.charge(device, bytes)?;
    let charge = |each: &Missing| {
        let asked = &specs[each.index];
        let text = each.name.len() + asked.producer.len() + asked.metadata.as_deref().map_or(0, str::len);
        store.metadata_charge(&segment, store.devices.host().metadata_of(text, asked.shape.len()))
    };
    contents.into_iter().map(charge).collect()
}

/// Fills a pack of the cache with the blobs, or a segment of `total` bytes with the blobs at `ranges`.
fn fill(
    store: &LocalStore,
    device: Device,
    unknown: &[Missing],
    ranges: Vec<Range<usize>>,
    total: usize,
    source: &mut dyn BlobSource,
) -> Result<Vec<BlobLocation>> {
    let entries: Vec<(ContentHash, usize)> = unknown.iter().map(|each| (each.hash, each.len)).collect();
    // If the cache has no room, the blobs go into memory of this process.
    if let Some(cache) = &store.cache
        && cache.device() == device
        && let Some(mut pack) = store.counters.unless_cache_fails(cache.begin(&entries))
    {
        for (index, each) in unknown.iter().enumerate() {
            source.fill(each.index, pack.entry_mut(index))?;
        }
        if let Some(located) = store.counters.unless_cache_fails(pack.commit()) {
            return Ok(located);
        }
    }
    let mut segment = store.devices.memory(device)?.reserve(total)?;
    for (each, range) in unknown.iter().zip(&ranges) {
        write(store, &mut *segment, range.start, each, source)?;
    }
    let segment = segment.freeze()?;
    Ok(ranges.into_iter().map(|range| (Arc::clone(&segment), range)).collect())
}

fn write(
    store: &LocalStore,
    segment: &mut dyn SegmentMut,
    offset: usize,
    each: &Missing,
    source: &mut dyn BlobSource,
) -> Result<()> {
    if let Some(bytes) = segment.bytes_mut() {
        return source.fill(each.index, &mut bytes[offset..offset + each.len]);
    }
    store.record_copy(&each.name, CopyReason::DeviceTransfer, each.len);
    if let Some((found, range)) = cached(store, each)
        && let Some(bytes) = found.bytes().and_then(|bytes| bytes.get(range))
    {
        return segment.write_at(offset, bytes);
    }
    let mut copy = vec![0; each.len];
    source.fill(each.index, &mut copy)?;
    segment.write_at(offset, &copy)
}

pub(crate) fn begin(
    store: &LocalStore,
    specs: &[BlobSpec],
    holder: &Holder,
    waiter: &mut Waiter<'_>,
    waker: &Waker,
) -> Result<UploadPlan> {
    let (mut held, mut waiting, mut missing) = (HashMap::new(), HashSet::new(), Vec::new());
    for (hash, (index, len)) in distinct(specs)? {
        match store.poll_claim(&blob_key(&hash, specs[index].device), holder, waiter, waker) {
            Poll::Ready(Ok(Claim::Ready(leases))) => drop(held.insert(hash, only(leases, &hash)?)),
            Poll::Ready(Ok(Claim::Compute(ticket))) => {
                missing.push(Missing::new(ticket, hash, &specs[index], index, len))
            }
            Poll::Ready(Err(error)) => return Err(error),
            Poll::Pending => drop(waiting.insert(hash)),
        }
    }
    let mut plan = UploadPlan { ready: Vec::new(), pending: Vec::new(), pack: None };
    for (index, spec) in specs.iter().enumerate() {
        if let Some(lease) = held.get(&spec.hash) {
            plan.ready.push((index, lease.view_as(spec)?));
        } else if waiting.contains(&spec.hash) {
            plan.pending.push(index);
        }
    }
    if !missing.is_empty() {
        let (ranges, bytes) = packed(missing.iter().map(|each| each.len))?;
        let charges = charges(store, specs[0].device, bytes as u64, specs, &missing)?;
        plan.pack = Some(BlobPack { specs: specs.to_vec(), missing, ranges, bytes, charges, holder: holder.clone() });
    }
    Ok(plan)
}

/// Publishes and leases the blobs of `pack`, which `segment` holds, in the order of its indexes.
pub(crate) fn publish(
    store: &LocalStore,
    pack: BlobPack,
    segment: &Arc<dyn Segment>,
    took: Duration,
) -> Result<Vec<Lease>> {
    let BlobPack { specs, missing, ranges, charges, holder, .. } = pack;
    let each_took = took / u32::try_from(missing.len()).unwrap_or(u32::MAX).max(1);
    let mut request = Request { store, specs: &specs, holder: &holder, held: HashMap::new() };
    let hashes: Vec<ContentHash> = missing.iter().map(|each| each.hash).collect();
    for ((each, range), charge) in missing.into_iter().zip(ranges).zip(charges) {
        let located = (Arc::clone(segment), range);
        request.publish(each, located, charge, each_took)?;
    }
    Ok(hashes.iter().filter_map(|hash| request.held.remove(hash)).collect())
}
