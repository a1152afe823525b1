//! The log of copies: totals by reason, and the latest copies with the names of their tensors.

use crate::log;
use crate::{Copies, CopyReason, RecentCopy};
use cotensor_core::sync::lock;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The number of copies in [`CopyLog::recent`].
const RECENT_MAX: usize = 64;

/// The copies in a store.
#[derive(Default)]
pub(crate) struct CopyLog {
    /// Count and bytes by reason.
    totals: [(AtomicU64, AtomicU64); CopyReason::ALL.len()],
    recent: Mutex<VecDeque<Event>>,
}

struct Event {
    tensor: String,
    reason: CopyReason,
    bytes: u64,
    at: Duration,
}

impl CopyLog {
    pub(crate) fn record(&self, tensor: &str, reason: CopyReason, bytes: u64, at: Duration) {
        let (count, total) = &self.totals[reason as usize];
        count.fetch_add(1, Ordering::Relaxed);
        total.fetch_add(bytes, Ordering::Relaxed);
        log::log(|| format!("copy {tensor}: {bytes} bytes, {}", reason.name()));
        let event = Event { tensor: tensor.to_owned(), reason, bytes, at };
        let mut recent = lock(&self.recent);
        if recent.len() == RECENT_MAX {
            recent.pop_front();
        }
        recent.push_back(event);
    }

    /// The totals of each reason with at least one copy.
    pub(crate) fn totals(&self) -> Vec<Copies> {
        let of = |&reason: &CopyReason| {
            let (count, bytes) = &self.totals[reason as usize];
            Copies {
                reason: reason.name().to_owned(),
                count: count.load(Ordering::Relaxed),
                bytes: bytes.load(Ordering::Relaxed),
            }
        };
        CopyReason::ALL.iter().map(of).filter(|copies| copies.count > 0).collect()
    }

    /// The latest copies, oldest first.
    pub(crate) fn recent(&self, now: Duration) -> Vec<RecentCopy> {
        let recent = lock(&self.recent);
        let seen = |event: &Event| RecentCopy {
            tensor: event.tensor.clone(),
            reason: event.reason.name().to_owned(),
            bytes: event.bytes,
            age_seconds: now.saturating_sub(event.at).as_secs_f64(),
        };
        recent.iter().map(seen).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_count_all_copies_and_recent_keeps_the_latest() {
        let log = CopyLog::default();
        for number in 0..RECENT_MAX as u64 + 3 {
            log.record(&format!("t{number}"), CopyReason::EngineOutput, number, Duration::from_secs(number));
        }
        log.record("last", CopyReason::Put, 7, Duration::from_secs(100));
        let totals = log.totals();
        let totals: Vec<(&str, u64)> = totals.iter().map(|copies| (&*copies.reason, copies.count)).collect();
        assert_eq!(totals, [("engine output", RECENT_MAX as u64 + 3), ("put", 1)]);
        let recent = log.recent(Duration::from_secs(103));
        assert_eq!((recent.len(), recent[0].tensor.as_str()), (RECENT_MAX, "t4"));
        let last = recent.last().unwrap();
        assert_eq!((last.tensor.as_str(), &*last.reason, last.bytes, last.age_seconds), ("last", "put", 7, 3.0));
    }
}
