//! Weights by content, through the daemon: leased where they are, provided where nobody has them.

use super::ClientStore;
use super::link::{Live, WORK_TIMEOUT};
use super::memory::descriptor_of;
use crate::protocol as p;
use cotensor_core::{Error, Result};
use cotensor_store::{BlobSource, BlobSpec, Holder, Lease};
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
        // Both steps are one session's: should the daemon be replaced in between, both are done again.
        let found = store.attempt(|live| {
            let answer = ask(store, live, specs, &left, holder)?;
            let mut found = answer.ready;
            if let Some(wanted) = answer.wanted {
                found.extend(provide(store, live, &wanted, source, holder)?);
            }
            Ok(found)
        })?;
        for (place, lease) in found {
            leases[place] = Some(lease.view_as(&specs[place])?);
        }
        // What others provide is there in a later round, and so is a content that was asked for twice.
        left.retain(|&place| leases[place].is_none());
    }
    let complete = leases.into_iter().collect::<Option<Vec<_>>>();
    complete.ok_or_else(|| Error::corrupt("the daemon left contents out"))
}

struct Answer {
    ready: Vec<(usize, Lease)>,
    wanted: Option<p::Wanted>,
}

/// Asks for the contents at the places `left`; places of the answer are those of `specs`.
fn ask(store: &ClientStore, live: &Live, specs: &[BlobSpec], left: &[usize], holder: &Holder) -> Result<Answer> {
    let content = |&place: &usize| {
        let BlobSpec { hash, dtype, shape, device, .. } = &specs[place];
        let (hash, dtype) = (hash.to_string(), dtype.name().to_owned());
        p::ContentParams { hash, dtype, shape: shape.clone(), device: *device }
    };
    let params = p::ContentsParams {
        contents: left.iter().map(content).collect(),
        producer: left.first().map(|&place| specs[place].producer.clone()).unwrap_or_default(),
        holder: holder.name().to_owned(),
    };
    let (answer, fds) = live.connection.call::<p::Contents>(&params, Vec::new(), Some(WORK_TIMEOUT))?;
    let (mut fds, mut ready) = (fds.into_iter(), Vec::new());
    let there = |place: usize| left.get(place).copied().ok_or_else(|| Error::corrupt("a place that was not asked for"));
    for (place, descriptor) in answer.ready {
        ready.push((there(place)?, store.open(live, (descriptor, &mut fds), holder)?));
    }
    let mut wanted = answer.wanted;
    if let Some(wanted) = &mut wanted {
        for (place, ..) in &mut wanted.places {
            *place = there(*place)?;
        }
    }
    if ready.is_empty() && wanted.is_none() && answer.busy.is_empty() {
        return Err(Error::corrupt("the daemon left contents out"));
    }
    Ok(Answer { ready, wanted })
}

/// Fills one segment with what the daemon wants, and publishes it.
fn provide(
    store: &ClientStore,
    live: &Live,
    wanted: &p::Wanted,
    source: &mut dyn BlobSource,
    holder: &Holder,
) -> Result<Vec<(usize, Lease)>> {
    let start = Instant::now();
    let filled = fill(store, wanted, source);
    let segment = match filled {
        Ok(segment) => segment,
        Err(error) => {
            live.tell::<p::DiscardContents>(&p::ReservationParams { reservation: wanted.reservation });
            return Err(error);
        }
    };
    let micros = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
    let params = p::ProvideParams { reservation: wanted.reservation, micros };
    let (published, _) = live.call_long::<p::ProvideContents>(&params, vec![descriptor_of(&*segment)?])?;
    let open = |descriptor| store.opened.part(live, &descriptor, segment.clone(), holder, store.me.clone());
    let places = wanted.places.iter().map(|(place, ..)| *place);
    places.zip(published.tensors).map(|(place, descriptor)| Ok((place, open(descriptor)?))).collect()
}

fn fill(
    store: &ClientStore,
    wanted: &p::Wanted,
    source: &mut dyn BlobSource,
) -> Result<std::sync::Arc<dyn cotensor_core::Segment>> {
    let len = usize::try_from(wanted.bytes).map_err(|_| Error::unsupported("contents beyond this process"))?;
    let mut memory = store.slabs.pool.memory().reserve(len)?;
    let bytes = memory.bytes_mut().ok_or_else(|| Error::unsupported("this memory is on a device"))?;
    for &(place, offset, len) in &wanted.places {
        let range =
            usize::try_from(offset).ok().and_then(|from| Some(from..from.checked_add(usize::try_from(len).ok()?)?));
        let part = range
            .and_then(|range| bytes.get_mut(range))
            .ok_or_else(|| Error::corrupt("a content beyond its segment"))?;
        source.fill(place, part)?;
    }
    memory.freeze()
}
