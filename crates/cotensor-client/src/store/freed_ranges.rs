//! Published ranges of slabs, which are used again after the daemon reports that no lease is left.
//!
//! The daemon reports the end of the last tensor of a range, and nothing for a request that failed. So the client releases the range of a failed
//! request, unless an earlier request, whose answer was lost, has published the same tensor.

use super::memories::descriptor_of;
use super::session::Session;
use crate::protocol as p;
use cotensor_core::sync::lock;
use cotensor_core::{Result, Segment};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// A slab of this client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OwnSlab {
    pub(super) number: u64,
    pub(super) is_block: bool,
    /// Its length.
    pub(super) bytes: usize,
}

/// Published ranges of slabs. A range is used again after the daemon reports that it has no leases.
#[derive(Clone, Default)]
pub(super) struct FreedRanges(Arc<Shared>);

#[derive(Default)]
struct Shared {
    ranges: Mutex<Ranges>,
    /// See [`FreedRanges::opening`].
    opening: Mutex<()>,
}

#[derive(Default)]
struct Ranges {
    generation: u64,
    /// This client's slab numbers by the session's.
    slabs: HashMap<u64, u64>,
    /// By this client's slab number and the offset.
    parts: HashMap<(u64, u64), Part>,
    /// Notifications about slabs whose numbers are not known yet.
    early: Vec<p::FreedParams>,
}

struct Part {
    /// The range, which is used again after the drop.
    range: Arc<dyn Segment>,
    state: PartState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PartState {
    /// A request to publish it has no answer yet.
    Requested,
    /// As `Requested`, and a tensor of an earlier request lies in it.
    RequestedAgain,
    /// A tensor lies in it.
    Published,
}

impl FreedRanges {
    /// Handles a notification on the connection of `generation`.
    pub(super) fn add(&self, generation: u64, params: &p::FreedParams) {
        let mut published = lock(&self.0.ranges);
        if published.generation != generation {
            return;
        }
        let Some(&slab) = published.slabs.get(&params.slab) else {
            return published.early.push(params.clone());
        };
        let freed: Vec<_> =
            params.offsets.iter().filter_map(|&offset| published.remove_freed((slab, offset))).collect();
        drop(published);
        drop(freed);
    }

    /// Starts the session of `generation`, which has no slab yet.
    pub(super) fn begin(&self, generation: u64) {
        let mut published = lock(&self.0.ranges);
        published.generation = generation;
        published.slabs.clear();
        published.early.clear();
    }

    /// Registers the number of a slab in the session of `generation`. Its live tensors are at the offsets `live`.
    pub(super) fn opened(&self, generation: u64, slab: u64, number: u64, live: &[u64]) {
        let mut published = lock(&self.0.ranges);
        if published.generation != generation {
            return;
        }
        published.slabs.insert(number, slab);
        let early: Vec<p::FreedParams> = published.early.extract_if(.., |freed| freed.slab == number).collect();
        let freed = |offset: &u64| !live.contains(offset) || early.iter().any(|freed| freed.offsets.contains(offset));
        let gone: Vec<_> = published.parts.extract_if(|(known, offset), _| *known == slab && freed(offset)).collect();
        // A tensor whose request had no answer was published.
        let kept = published.parts.iter_mut().filter(|((known, _), _)| *known == slab);
        kept.for_each(|(_, part)| part.state = PartState::Published);
        drop(published);
        drop(gone);
    }

    /// Keeps a range from the request to publish it, in the session of `generation`, until the daemon reports that it has no leases. Then
    /// [`published`](Self::published) or [`refused`](Self::refused) has the answer; without one, the next session finds it out.
    ///
    /// # Errors
    /// `Io` when another session has replaced that one.
    pub(super) fn request(&self, session: &Session, slab: u64, offset: u64, segment: &Arc<dyn Segment>) -> Result<()> {
        if lock(&self.0.ranges).request(session.generation, (slab, offset), segment) {
            Ok(())
        } else {
            Err(session.replaced())
        }
    }

    /// Notes that the daemon has published a range. Called before the lease is released.
    pub(super) fn published(&self, slab: u64, offset: u64) {
        if let Some(part) = lock(&self.0.ranges).parts.get_mut(&(slab, offset)) {
            part.state = PartState::Published;
        }
    }

    /// Notes that the daemon has refused to publish a range, and releases it, unless a tensor of an earlier request lies in it.
    pub(super) fn refused(&self, slab: u64, offset: u64) {
        let released = lock(&self.0.ranges).refused((slab, offset));
        drop(released);
    }

    /// The session's number of the slab in which `range` lies. A slab that was retired with the last daemon, on a device with the last
    /// session, is opened again for a range that was not published yet.
    pub(super) fn number(&self, session: &Session, slab: OwnSlab, range: &dyn Segment) -> Result<u64> {
        let open = || {
            let whole = descriptor_of(range)?;
            let (bytes, block, device) = (slab.bytes as u64, slab.is_block, range.device());
            let params = p::SlabParams { bytes, block, device, reservation: None };
            Ok(session.call_long::<p::OpenSlab>(&params, vec![whole])?.0)
        };
        self.number_or_open(session.generation, slab.number, open)
    }

    /// Held by a thread that opens a slab which other threads may open, too: the daemon makes an entry for each request, and the budget counts
    /// both.
    pub(super) fn opening(&self) -> MutexGuard<'_, ()> {
        lock(&self.0.opening)
    }

    /// The present session's number of a slab. `open` opens it in the session of `generation`.
    fn number_or_open(&self, generation: u64, slab: u64, open: impl FnOnce() -> Result<p::SlabResult>) -> Result<u64> {
        let known = || lock(&self.0.ranges).number(slab);
        if let Some(number) = known() {
            return Ok(number);
        }
        let _opening = self.opening();
        if let Some(number) = known() {
            return Ok(number);
        }
        let opened = open()?;
        self.opened(generation, slab, opened.slab, &opened.live);
        Ok(opened.slab)
    }

    /// Releases the ranges of slabs that are not used again: those for which `is_lost` is true. Other processes may still read them.
    pub(super) fn lose(&self, is_lost: impl Fn(u64) -> bool) {
        let lost: Vec<_> = lock(&self.0.ranges).parts.extract_if(|(slab, _), _| is_lost(*slab)).collect();
        lost.iter().for_each(|(_, part)| part.range.retire());
    }

    /// Forgets a slab. Returns the session's number of it.
    pub(super) fn close(&self, slab: u64) -> Option<u64> {
        let mut published = lock(&self.0.ranges);
        let number = published.number(slab)?;
        published.slabs.remove(&number);
        Some(number)
    }
}

impl Ranges {
    fn number(&self, slab: u64) -> Option<u64> {
        self.slabs.iter().find(|(_, own)| **own == slab).map(|(number, _)| *number)
    }

    /// False in another session.
    fn request(&mut self, generation: u64, at: (u64, u64), segment: &Arc<dyn Segment>) -> bool {
        let is_current = self.generation == generation;
        if is_current {
            let state = if self.parts.contains_key(&at) { PartState::RequestedAgain } else { PartState::Requested };
            self.parts.insert(at, Part { range: Arc::clone(segment), state });
        }
        is_current
    }

    fn refused(&mut self, at: (u64, u64)) -> Option<Part> {
        match &mut self.parts.get_mut(&at)?.state {
            PartState::Requested => self.parts.remove(&at),
            state => {
                *state = PartState::Published;
                None
            }
        }
    }

    /// The tensor in a range was freed. A report that arrives before the answer to a request is about the tensor of an earlier request: this
    /// session has a lease of a tensor from its publication on.
    fn remove_freed(&mut self, at: (u64, u64)) -> Option<Part> {
        match &mut self.parts.get_mut(&at)?.state {
            PartState::Published => self.parts.remove(&at),
            state => {
                *state = PartState::Requested;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_core::{HeapMemory, Memory};

    const SLAB: u64 = 1;
    /// The session's number of the slab.
    const NUMBER: u64 = 70;
    const OFFSET: u64 = 128;

    /// Ranges in a first session, which has opened the slab, and a range of it.
    fn opened() -> (FreedRanges, Arc<dyn Segment>) {
        let ranges = FreedRanges::default();
        ranges.begin(1);
        ranges.opened(1, SLAB, NUMBER, &[]);
        (ranges, HeapMemory.reserve(64).unwrap().freeze().unwrap())
    }

    fn request(ranges: &FreedRanges, generation: u64, range: &Arc<dyn Segment>) -> bool {
        lock(&ranges.0.ranges).request(generation, (SLAB, OFFSET), range)
    }

    fn free(ranges: &FreedRanges, generation: u64) {
        ranges.add(generation, &p::FreedParams { slab: NUMBER, offsets: vec![OFFSET] });
    }

    fn is_kept(range: &Arc<dyn Segment>) -> bool {
        Arc::strong_count(range) > 1
    }

    #[test]
    fn range_is_kept_from_the_request_until_its_tensor_is_freed() {
        let (ranges, range) = opened();
        assert!(request(&ranges, 1, &range));
        ranges.published(SLAB, OFFSET);
        free(&ranges, 0);
        assert!(is_kept(&range), "a report to another session");
        free(&ranges, 1);
        assert!(!is_kept(&range));
        assert!(request(&ranges, 1, &range));
        ranges.refused(SLAB, OFFSET);
        assert!(!is_kept(&range), "a refused request");
        assert!(!request(&ranges, 0, &range) && !is_kept(&range), "a request of a session that has ended");
    }

    #[test]
    fn refused_repetition_keeps_the_tensor_of_the_lost_answer() {
        let (ranges, range) = opened();
        for (generation, live) in [(2, true), (3, false)] {
            assert!(request(&ranges, generation - 1, &range));
            ranges.begin(generation);
            ranges.opened(generation, SLAB, NUMBER, if live { &[OFFSET] } else { &[] });
            assert_eq!(is_kept(&range), live);
            assert!(request(&ranges, generation, &range));
            ranges.refused(SLAB, OFFSET);
            assert_eq!(is_kept(&range), live);
            free(&ranges, generation);
            assert!(!is_kept(&range));
        }
    }

    #[test]
    fn one_thread_opens_a_slab_again() {
        let (ranges, _) = opened();
        ranges.begin(2);
        let open = || {
            assert!(ranges.0.opening.try_lock().is_err(), "other threads wait");
            Ok(p::SlabResult { slab: NUMBER, live: Vec::new() })
        };
        assert_eq!(ranges.number_or_open(2, SLAB, open).unwrap(), NUMBER);
        assert_eq!(ranges.number_or_open(2, SLAB, || panic!("it is open")).unwrap(), NUMBER);
        assert_eq!((ranges.close(SLAB), ranges.close(SLAB)), (Some(NUMBER), None));
        let replaced = || {
            ranges.begin(3);
            Ok(p::SlabResult { slab: NUMBER, live: Vec::new() })
        };
        assert_eq!(ranges.number_or_open(2, SLAB, replaced).unwrap(), NUMBER);
        assert_eq!(ranges.close(SLAB), None, "the next session has other numbers");
    }

    #[test]
    fn report_about_an_earlier_tensor_keeps_the_range_of_a_request() {
        let (ranges, range) = opened();
        let request_again = |generation| {
            assert!(request(&ranges, generation - 1, &range));
            ranges.begin(generation);
            ranges.opened(generation, SLAB, NUMBER, &[OFFSET]);
            assert!(request(&ranges, generation, &range));
            free(&ranges, generation);
            assert!(is_kept(&range), "the tensor of the lost answer was freed");
        };
        request_again(2);
        ranges.published(SLAB, OFFSET);
        free(&ranges, 2);
        assert!(!is_kept(&range));
        request_again(3);
        ranges.refused(SLAB, OFFSET);
        assert!(!is_kept(&range));
    }
}
