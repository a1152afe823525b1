//! Blobs by content hash: leased where they exist, uploaded where they do not.

use super::ClientStore;
use super::memories::descriptor_of;
use super::session::Session;
use crate::protocol::{self as p, Method};
use cotensor_core::{ContentHash, Error, ErrorKind, Result, Segment};
use cotensor_store::{BlobSource, BlobSpec, CopyReason, Holder, Lease, StoreReports};
use std::sync::Arc;
use std::time::Instant;

pub(super) fn lease(
    store: &ClientStore,
    specs: &[BlobSpec],
    source: &mut dyn BlobSource,
    holder: &Holder,
) -> Result<Vec<Lease>> {
    let mut leases: Vec<Option<Lease>> = specs.iter().map(|_| None).collect();
    let mut left: Vec<usize> = (0..specs.len()).collect();
    while !left.is_empty() {
        // Both steps belong to one session. If the daemon is replaced in between, both are repeated.
        let found = store.daemon.retry(|session| {
            let answer = plan(store, session, specs, &left, holder)?;
            let mut found = answer.ready;
            if let Some(upload) = answer.upload {
                found.extend(provide(store, specs, upload, source, holder)?);
            }
            Ok(found)
        })?;
        for (place, lease) in found {
            leases[place] = Some(lease.view_as(&specs[place])?);
        }
        // Blobs that another session uploads exist in a later round, and so does a blob that was requested twice.
        left.retain(|&place| leases[place].is_none());
    }
    let complete = leases.into_iter().collect::<Option<Vec<_>>>();
    complete.ok_or_else(|| Error::corrupt("the daemon did not lease every blob"))
}

struct Answer<'s> {
    ready: Vec<(usize, Lease)>,
    upload: Option<Upload<'s>>,
}

/// Blobs that this session has to upload, and no other meanwhile. Passed on to another session on drop, unless the daemon has answered the call
/// that ends the upload: after an error of the connection, which may have sent nothing.
struct Upload<'s> {
    session: &'s Session,
    planned: p::BlobUpload,
    is_answered: bool,
}

impl Drop for Upload<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            let params = p::ReservationParams { reservation: self.planned.reservation };
            self.session.notify::<p::DiscardBlobs>(&params);
        }
    }
}

/// Requests the blobs at the indices `left`. The indices of the answer refer to `specs`.
fn plan<'s>(
    store: &ClientStore,
    session: &'s Session,
    specs: &[BlobSpec],
    left: &[usize],
    holder: &Holder,
) -> Result<Answer<'s>> {
    let content = |&place: &usize| {
        let BlobSpec { hash, dtype, shape, device, label, metadata, .. } = &specs[place];
        let (hash, dtype) = (hash.to_string(), dtype.name().to_owned());
        let metadata = metadata.as_deref().map(str::to_owned);
        p::BlobParams { hash, dtype, shape: shape.clone(), device: *device, label: label.clone(), metadata }
    };
    let params = p::PlanUploadParams {
        blobs: left.iter().map(content).collect(),
        producer: left.first().map(|&place| specs[place].producer.clone()).unwrap_or_default(),
        holder: holder.name().to_owned(),
    };
    // Another session that uploads one of them uploads all that are left.
    let first = left.first().map(|&place| (specs[place].hash, specs[place].device));
    let describe = || match first {
        Some((hash, device)) => session.describe_upload(&hash, device),
        None => session.connection.describe(p::PlanUpload::NAME),
    };
    let (answer, fds) = session.call_work::<p::PlanUpload>(&params, &describe)?;
    // First: an error passes the upload on.
    let mut upload = answer.upload.map(|planned| Upload { session, planned, is_answered: false });
    let there =
        |place: usize| left.get(place).copied().ok_or_else(|| Error::corrupt("an index that was not requested"));
    let (places, descriptors): (Vec<usize>, Vec<_>) = answer.ready.into_iter().unzip();
    let leases = store.daemon.leases.open_each(session, descriptors, fds, holder, store.me.clone())?;
    let ready = places.into_iter().zip(leases).map(|(place, lease)| Ok((there(place)?, lease)));
    let ready: Vec<_> = ready.collect::<Result<_>>()?;
    if let Some(upload) = &mut upload {
        for (place, ..) in &mut upload.planned.places {
            *place = there(*place)?;
        }
    }
    if ready.is_empty() && upload.is_none() && answer.busy.is_empty() {
        return Err(Error::corrupt("the daemon did not lease every blob"));
    }
    Ok(Answer { ready, upload })
}

/// Fills one segment with the blobs to upload, and publishes it.
fn provide(
    store: &ClientStore,
    specs: &[BlobSpec],
    mut upload: Upload<'_>,
    source: &mut dyn BlobSource,
    holder: &Holder,
) -> Result<Vec<(usize, Lease)>> {
    let (session, start) = (upload.session, Instant::now());
    let segment = fill(store, specs, &upload.planned, source)?;
    let fd = descriptor_of(&*segment)?;
    let micros = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
    let params = p::PublishBlobsParams { reservation: upload.planned.reservation, micros };
    // The daemon ends the upload with any answer, and ignores a number that has ended.
    let (published, _) = session.call_long::<p::PublishBlobs>(&params, vec![fd])?;
    upload.is_answered = true;
    // Each of them, also after an error: the daemon has leased all.
    let open = |descriptor: &p::Descriptor| {
        store.daemon.leases.open_in(session, descriptor, segment.clone(), holder, store.me.clone())
    };
    let leases: Vec<Result<Lease>> = published.tensors.iter().map(open).collect();
    let places = upload.planned.places.iter().map(|(place, ..)| *place);
    places.zip(leases).map(|(place, lease)| Ok((place, lease?))).collect()
}

fn fill(
    store: &ClientStore,
    specs: &[BlobSpec],
    upload: &p::BlobUpload,
    source: &mut dyn BlobSource,
) -> Result<Arc<dyn Segment>> {
    let len =
        usize::try_from(upload.bytes).map_err(|_| Error::unsupported("more bytes than this process can address"))?;
    // All blobs of a request are on one device.
    let device = specs.first().map(|spec| spec.device).unwrap_or_default();
    let mut memory = store.daemon.memories.of(device)?.reserve(len)?;
    for &(place, offset, len) in &upload.places {
        let range = usize::try_from(offset).ok().and_then(|from| {
            let end = from.checked_add(usize::try_from(len).ok()?)?;
            (end <= memory.len()).then_some(from..end)
        });
        let range = range.ok_or_else(|| Error::corrupt("a blob beyond its segment"))?;
        if let Some(bytes) = memory.bytes_mut() {
            source.fill(place, &mut bytes[range])?;
            continue;
        }
        let mut copy = vec![0; range.len()];
        source.fill(place, &mut copy)?;
        check_hash(&copy, &specs[place].hash)?;
        memory.write_at(range.start, &copy)?;
        store.record_copy("", CopyReason::DeviceTransfer, copy.len());
    }
    memory.freeze()
}

/// Checks the bytes of a blob for a device, which the daemon cannot read. The daemon itself checks blobs in host
/// memory.
fn check_hash(bytes: &[u8], hash: &ContentHash) -> Result<()> {
    if ContentHash::of(bytes) == *hash {
        return Ok(());
    }
    let message = format!("blob {} does not match its hash: hash it again", hash.short());
    Err(Error::new(ErrorKind::Refused, message).in_field("blobs"))
}
