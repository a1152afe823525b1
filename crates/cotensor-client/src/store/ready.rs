//! Memory of calls that this process keeps ready, as the daemon shows it.

use super::session::Session;
use crate::protocol as p;
use cotensor_core::sync::lock;
use std::sync::{Arc, Mutex};

/// All of a client, in bytes.
#[derive(Default)]
pub(super) struct ReadyBytes(Mutex<u64>);

impl ReadyBytes {
    /// A part that had `before` bytes has `now`. Reports all in the present session.
    pub(super) fn change(&self, before: u64, now: u64, session: impl FnOnce() -> Arc<Session>) {
        let mut all = lock(&self.0);
        *all = all.saturating_sub(before).saturating_add(now);
        // Under the lock: the daemon gets the totals in their order.
        report(&session(), *all);
    }

    /// Reports it in a new session.
    pub(super) fn reopen(&self, session: &Session) {
        let all = *lock(&self.0);
        if all > 0 {
            report(session, all);
        }
    }
}

fn report(session: &Session, bytes: u64) {
    session.notify::<p::RecordReady>(&p::ReadyParams { bytes });
}
