//! `blob.*`: blobs by their hashes. Existing blobs are leased; the first session that requests a missing blob uploads
//! it.

use crate::dispatch::{Answer, Caller, NOTHING, Reply};
use crate::state::content_hash;
use crate::state::segment::own_segment;
use crate::state::session::Granted;
use cotensor_client::protocol::{
    BlobUpload, Descriptors, Empty, PlanUploadParams, PlanUploadResult, PublishBlobsParams, ReservationParams,
    check_metadata,
};
use cotensor_core::{ContentHash, DType, Error, ErrorKind, Result, Segment};
use cotensor_store::{BlobPack, BlobSpec, UploadPlan, check_name};
use std::sync::Arc;
use std::time::Duration;

/// The most blobs of one request.
const BLOBS_MAX: usize = 65_536;

pub(super) async fn plan_upload(caller: Caller, params: PlanUploadParams) -> Answer<PlanUploadResult> {
    if params.blobs.len() > BLOBS_MAX {
        let message = format!("{} blobs; at most {BLOBS_MAX} in one request", params.blobs.len());
        return Err(Error::invalid(message).in_field("blobs"));
    }
    check_name(&params.producer, "producer")?;
    let specs: Vec<BlobSpec> = params
        .blobs
        .iter()
        .map(|blob| {
            check_name(&blob.label, "label")?;
            blob.metadata.as_deref().map_or(Ok(()), check_metadata)?;
            Ok(BlobSpec {
                device: blob.device,
                hash: content_hash(&blob.hash)?,
                dtype: blob.dtype.parse::<DType>()?,
                shape: blob.shape.clone(),
                producer: params.producer.clone(),
                label: blob.label.clone(),
                metadata: blob.metadata.as_deref().map(Arc::from),
            })
        })
        .collect::<Result<_>>()?;
    let holder = caller.holder(&params.holder)?;
    let store = &caller.daemon.store;
    // A request waits only when it has nothing to upload, so it blocks no other session.
    let planned = store.plan_upload(&specs, &holder);
    let wait = caller.daemon.config.claim_wait_max;
    let UploadPlan { ready, pending: busy, pack } = tokio::time::timeout(wait, planned).await.map_err(|_| {
        Error::new(
            ErrorKind::TimedOut,
            format!("another session has uploaded these blobs for over {} s: try again", wait.as_secs()),
        )
    })??;
    let mut granted = Granted::new(&caller.session);
    let grant = |(index, lease)| granted.lease(lease, &holder).map(|descriptor| (index, descriptor));
    let ready = ready.into_iter().map(grant).collect::<Result<_>>()?;
    let upload = match pack {
        None => None,
        Some(pack) => {
            let (bytes, allocated) = (pack.bytes() as u64, pack.device().allocated_bytes(pack.bytes() as u64));
            let places = pack.indexes().map(|(index, range)| (index, range.start as u64, range.len() as u64)).collect();
            let reservation = granted.pack(pack, caller.charge(allocated)?)?;
            Some(BlobUpload { reservation, bytes, places })
        }
    };
    Ok(Reply::granting(PlanUploadResult { ready, busy, upload }, granted))
}

pub(super) async fn publish(mut caller: Caller, params: PublishBlobsParams) -> Answer<Descriptors> {
    // First: an error ends the upload, too, which another session takes over.
    let (pack, own) = caller.lock().packs.take(params.reservation, "reservation")?;
    let fd = caller.fd()?;
    let holder = pack.holder().clone();
    let segment = own_segment(fd, pack.bytes(), pack.device())?;
    // The daemon cannot read a device: there the client has checked the hashes.
    if segment.device().is_host() {
        verify(&pack, &*segment)?;
    }
    let leases = caller.daemon.store.publish_pack(pack, &segment, Duration::from_micros(params.micros))?;
    drop(own);
    let _in_use = caller.use_client_segment(&*segment)?;
    let mut granted = Granted::new(&caller.session);
    let tensors = leases.into_iter().map(|lease| granted.lease(lease, &holder)).collect::<Result<_>>()?;
    Ok(Reply::granting(Descriptors { tensors }, granted))
}

/// Reads each blob and checks its hash, by which other clients lease it. The segment is sealed, so the bytes cannot
/// change.
fn verify(pack: &BlobPack, segment: &dyn Segment) -> Result<()> {
    for (hash, range) in pack.hashes() {
        let found = ContentHash::of_pieces(range.len(), |at, piece| segment.read_at(range.start + at, piece))?;
        if found != *hash {
            let message = format!("blob {} does not match its hash: hash it again", hash.short());
            return Err(Error::new(ErrorKind::Refused, message).in_field("blobs"));
        }
    }
    Ok(())
}

pub(super) async fn discard(caller: Caller, params: ReservationParams) -> Answer<Empty> {
    let pack = caller.lock().packs.take(params.reservation, "reservation")?;
    drop(pack);
    Ok(NOTHING.into())
}
