//! Free ranges of slabs, of which the client has no notification yet.

use cotensor_client::protocol::{FreedParams, notification};
use cotensor_core::sync::lock;
use cotensor_rpc::server::Outbox;
use cotensor_rpc::{Frame, encode_call};
use std::collections::BTreeSet;
use std::sync::Mutex;

/// The most ranges in one notification: few enough that a socket accepts all of it or nothing.
const RANGES_PER_MESSAGE: usize = 128;
/// The most ranges that wait for a client that does not read.
const PENDING_MAX: usize = 1 << 20;

/// Ranges as slab and offset in bytes.
#[derive(Default)]
pub(super) struct FreeRanges(Mutex<BTreeSet<(u64, u64)>>);

impl FreeRanges {
    /// Adds a range. Returns false when the client leaves too many of them unread.
    pub(super) fn add(&self, slab: u64, offset: u64) -> bool {
        let mut pending = lock(&self.0);
        pending.insert((slab, offset));
        pending.len() <= PENDING_MAX
    }

    /// Takes a range out again, of which the client has no notification yet. False without such a range.
    pub(super) fn remove(&self, slab: u64, offset: u64) -> bool {
        lock(&self.0).remove(&(slab, offset))
    }

    /// Sends notifications as far as the client's socket has room.
    pub(super) fn send(&self, outbox: &Outbox) {
        let mut pending = lock(&self.0);
        while let Some(&(slab, _)) = pending.first() {
            let offsets = pending.range((slab, 0)..=(slab, u64::MAX)).map(|(_, offset)| *offset);
            let params = FreedParams { slab, offsets: offsets.take(RANGES_PER_MESSAGE).collect() };
            let body = encode_call(None, notification::SLAB_FREED, &params);
            // A connection that has ended needs no notification.
            if !body.and_then(|body| outbox.offer(Frame::new(body))).unwrap_or(false) {
                return;
            }
            for offset in params.offsets {
                pending.remove(&(slab, offset));
            }
        }
    }
}
