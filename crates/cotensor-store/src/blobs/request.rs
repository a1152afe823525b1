//! Requests for blobs. Each blob exists once on a device; the new blobs of a request are packed into one segment.

use crate::budget::TensorCharge;
use crate::embedded::EmbeddedStore;
use crate::types::check_metadata;
use crate::{
    BlobSource, BlobSpec, Claim, ComputationStore, CopyReason, Holder, Key, Lease, Retention, StoreReports, TensorSpec,
    Ticket,
};
use cotensor_core::{
    ALIGNMENT, BlobLocation, ContentHash, DType, Device, Error, Hasher, Kind, Layout, Result, Segment, SegmentMut,
    TENSOR_BYTES_MAX,
};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

/// The most bytes of a name with a label.
const BLOB_NAME_BYTES_MAX: usize = 512;

/// A blob that this request provides.
struct Missing {
    ticket: Ticket,
    hash: ContentHash,
    name: String,
    /// Its first index in the request.
    index: usize,
    len: usize,
}

/// Each blob once, with its first index in the request and its length, in the order of the hashes. Requests claim in
/// that order, so that they cannot wait for each other in a circle.
///
/// # Errors
/// `Invalid` for a blob with two sizes, for two devices in one request, and for metadata that are too long.
fn distinct(specs: &[BlobSpec]) -> Result<BTreeMap<ContentHash, (usize, usize)>> {
    let mut wanted = BTreeMap::new();
    for (index, spec) in specs.iter().enumerate() {
        if spec.device != specs[0].device {
            let message = format!(
                "blobs on {} and on {} in one request; make one request for each device",
                specs[0].device, spec.device
            );
            return Err(Error::invalid(message).in_field("device"));
        }
        check_metadata(spec.metadata.as_deref())?;
        let len = Layout::contiguous(spec.dtype, &spec.shape)?.size_bytes();
        let (_, first) = *wanted.entry(spec.hash).or_insert((index, len));
        if first != len {
            return Err(Error::invalid(format!("blob {} has two sizes in one request", spec.hash.short())));
        }
    }
    Ok(wanted)
}

fn only(mut leases: Vec<Lease>, hash: &ContentHash) -> Result<Lease> {
    leases.pop().ok_or_else(|| Error::not_found(format!("blob {} was freed", hash.short())))
}

pub(crate) fn lease_blobs(
    store: &EmbeddedStore,
    specs: &[BlobSpec],
    source: &mut dyn BlobSource,
    holder: &Holder,
) -> Result<Vec<Lease>> {
    let mut held: HashMap<ContentHash, Lease> = HashMap::new();
    let mut missing = Vec::new();
    for (hash, (index, len)) in distinct(specs)? {
        match store.claim(&blob_key(&hash, specs[index].device), holder)? {
            Claim::Ready(leases) => drop(held.insert(hash, only(leases, &hash)?)),
            Claim::Compute(ticket) => {
                missing.push(Missing { ticket, hash, name: name_of(&hash, &specs[index]), index, len })
            }
        }
    }
    provide(store, specs, missing, source, holder, &mut held)?;
    specs.iter().map(|spec| held[&spec.hash].view_as(spec)).collect()
}

/// The computation key of a blob on a device.
pub fn blob_key(hash: &ContentHash, device: Device) -> Key {
    let mut hasher = Hasher::new("cotensor weight v1");
    hasher.field(hash.as_bytes());
    if !device.is_host() {
        hasher.field(device.to_string().as_bytes());
    }
    Key(hasher.finish())
}

/// Publishes the missing blobs: from the cache if it has them, else from `source` in one new segment.
fn provide(
    store: &EmbeddedStore,
    specs: &[BlobSpec],
    missing: Vec<Missing>,
    source: &mut dyn BlobSource,
    holder: &Holder,
    held: &mut HashMap<ContentHash, Lease>,
) -> Result<()> {
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
            list(store, specs, each, located, charge, Duration::ZERO, holder, held)?;
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
        list(store, specs, each, located, charge, each_took, holder, held)?;
    }
    Ok(())
}

/// A blob in the cache.
fn cached(store: &EmbeddedStore, each: &Missing) -> Option<BlobLocation> {
    store.cache.as_ref()?.find(&each.hash).filter(|(_, range)| range.len() == each.len)
}

/// The charges of blobs in one segment of `bytes` bytes.
fn charges<'a>(
    store: &EmbeddedStore,
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
    store: &EmbeddedStore,
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
        && let Some(mut pack) = store.unless_cache_fails(cache.begin(&entries))
    {
        for (index, each) in unknown.iter().enumerate() {
            source.fill(each.index, pack.entry_mut(index))?;
        }
        if let Some(located) = store.unless_cache_fails(pack.commit()) {
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
    store: &EmbeddedStore,
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

#[allow(clippy::too_many_arguments, reason = "one step of provide, with two callers")]
fn list(
    store: &EmbeddedStore,
    specs: &[BlobSpec],
    mut each: Missing,
    (segment, range): BlobLocation,
    charge: TensorCharge,
    recompute: Duration,
    holder: &Holder,
    held: &mut HashMap<ContentHash, Lease>,
) -> Result<()> {
    let asked = &specs[each.index];
    let aligned = range.start.is_multiple_of(asked.dtype.size_bytes());
    let (dtype, shape) = if aligned { (asked.dtype, asked.shape.clone()) } else { (DType::U8, vec![each.len]) };
    let layout = Layout::contiguous(dtype, &shape)?.moved(range.start)?;
    let device = asked.device;
    let listed = BlobSpec { dtype, shape, ..asked.clone() };
    let spec = TensorSpec {
        name: each.name,
        provenance: Some(listed.identity()),
        dtype,
        shape: listed.shape,
        device,
        kind: Kind::Weight,
        space: None,
        producer: listed.producer,
        retention: Retention::Cached { recompute },
        keep_for: None,
        metadata: listed.metadata,
        members: None,
    };
    let lease = store.list(spec, layout, segment, charge, Some(each.ticket.key()), holder)?;
    each.ticket.finish(std::slice::from_ref(&lease));
    held.insert(each.hash, lease);
    Ok(())
}

/// The name of a blob: its label and the start of its hash, so that contents do not become versions of one name. It has the
/// device as a suffix, unless that is the host.
fn name_of(hash: &ContentHash, spec: &BlobSpec) -> String {
    let label = &spec.label;
    let named = format!("weight/{label}/{}", hash.short());
    let name = if label.is_empty() || named.len() > BLOB_NAME_BYTES_MAX { format!("weight/{hash}") } else { named };
    if spec.device.is_host() { name } else { format!("{name}@{}", spec.device) }
}

/// The answer to a request that does not wait.
pub struct UploadPlan {
    /// The blobs that exist, with their indexes in the request.
    pub ready: Vec<(usize, Lease)>,
    /// Indexes of blobs that other callers provide now.
    pub pending: Vec<usize>,
    /// The blobs that the caller provides.
    pub pack: Option<BlobPack>,
}

/// Blobs that their caller provides in one segment. Dropping it passes them to other callers.
pub struct BlobPack {
    specs: Vec<BlobSpec>,
    missing: Vec<Missing>,
    ranges: Vec<Range<usize>>,
    bytes: usize,
    charges: Vec<TensorCharge>,
    holder: Holder,
}

impl BlobPack {
    /// The device of all its contents.
    pub fn device(&self) -> Device {
        self.specs.first().map(|spec| spec.device).unwrap_or_default()
    }

    /// Length of the segment, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Indexes in the request, with the byte ranges of the blobs in the segment.
    pub fn indexes(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        self.missing.iter().map(|each| each.index).zip(self.ranges.iter().cloned())
    }

    /// Hashes with the byte ranges of the blobs in the segment.
    pub fn hashes(&self) -> impl Iterator<Item = (&ContentHash, Range<usize>)> {
        self.missing.iter().map(|each| &each.hash).zip(self.ranges.iter().cloned())
    }

    /// The holder of the leases.
    pub fn holder(&self) -> &Holder {
        &self.holder
    }
}

pub(crate) fn begin(store: &EmbeddedStore, specs: &[BlobSpec], holder: &Holder, waker: &Waker) -> Result<UploadPlan> {
    let (mut held, mut waiting, mut missing) = (HashMap::new(), HashSet::new(), Vec::new());
    for (hash, (index, len)) in distinct(specs)? {
        match store.poll_claim(&blob_key(&hash, specs[index].device), holder, waker) {
            Poll::Ready(Claim::Ready(leases)) => drop(held.insert(hash, only(leases, &hash)?)),
            Poll::Ready(Claim::Compute(ticket)) => {
                missing.push(Missing { ticket, hash, name: name_of(&hash, &specs[index]), index, len })
            }
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
    store: &EmbeddedStore,
    pack: BlobPack,
    segment: &Arc<dyn Segment>,
    took: Duration,
) -> Result<Vec<Lease>> {
    let BlobPack { specs, missing, ranges, charges, holder, .. } = pack;
    let each_took = took / u32::try_from(missing.len()).unwrap_or(u32::MAX).max(1);
    let mut held = HashMap::new();
    let hashes: Vec<ContentHash> = missing.iter().map(|each| each.hash).collect();
    for ((each, range), charge) in missing.into_iter().zip(ranges).zip(charges) {
        let located = (Arc::clone(segment), range);
        list(store, &specs, each, located, charge, each_took, &holder, &mut held)?;
    }
    Ok(hashes.iter().filter_map(|hash| held.remove(hash)).collect())
}

/// The byte ranges of blobs in one segment, at multiples of [`ALIGNMENT`], and the length of the segment.
fn packed(lens: impl IntoIterator<Item = usize>) -> Result<(Vec<Range<usize>>, usize)> {
    let mut ranges = Vec::new();
    let mut total = 0usize;
    for len in lens {
        let next = len.checked_next_multiple_of(ALIGNMENT).and_then(|padded| total.checked_add(padded));
        let next = next.filter(|&next| next as u64 <= TENSOR_BYTES_MAX && isize::try_from(next).is_ok());
        let too_many = || Error::invalid(format!("the blobs of one request exceed {TENSOR_BYTES_MAX} bytes"));
        // At most the padded sum, which is checked below.
        ranges.push(total..total.saturating_add(len));
        total = next.ok_or_else(too_many)?;
    }
    Ok((ranges, total))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_core::ErrorKind;

    #[test]
    fn packing_pads_and_checks_overflow() {
        let (ranges, total) = packed([5, 0, 64, 65]).unwrap();
        assert_eq!((ranges, total), (vec![0..5, 64..64, 64..128, 128..193], 256));
        // As much as a tensor may have, or as this machine addresses.
        let max = usize::try_from(TENSOR_BYTES_MAX).unwrap_or(isize::MAX as usize / 64 * 64);
        assert_eq!(packed([max]).unwrap().1, max);
        for lens in [&[usize::MAX][..], &[usize::MAX - 62], &[max, 1], &[64, usize::MAX - 64 - 63]] {
            assert_eq!(packed(lens.iter().copied()).unwrap_err().kind(), ErrorKind::Invalid);
        }
    }
}
