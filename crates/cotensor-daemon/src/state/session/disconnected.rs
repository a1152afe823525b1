//! Sessions whose connection has ended although their client lives: a call was not answered in time, or its socket was shut down.
//!
//! Such a client still has its mappings. Memory that is used again must keep its bytes as long as they exist, so the session's leases stay
//! until the client has resumed them in another session or has released the session's lock. So do its shares of devices: the client
//! still computes in their memory.

use super::resources::LeaseEntry;
use crate::state::broker::Share;
use cotensor_client::protocol::Id;
use cotensor_store::{Holder, TensorId};
use cotensor_supervisor::SessionClient;
use std::collections::HashMap;
use std::time::Duration;

/// The first and the longest interval between two checks of a lock. The kernel closes the descriptors of a killed process one after another.
const CHECK_INTERVAL_MIN: Duration = Duration::from_millis(1);
const CHECK_INTERVAL_MAX: Duration = Duration::from_millis(100);
/// The pause after a check, as a multiple of its time: many sessions take a tenth of a processor.
const PAUSE_FACTOR: u32 = 9;
/// The longest pause: a check takes long also while the daemon is stopped.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The most sessions that wait, as a multiple of that from which on clients that have some of them cannot begin another one.
const SESSIONS_FACTOR: usize = 4;

/// The leases of a session without a connection, and its shares of devices. Dropping them releases them.
pub(crate) struct LeftSession {
    pub(crate) session: u64,
    pub(crate) client: SessionClient,
    pub(super) leases: HashMap<(TensorId, Holder), LeaseEntry>,
    pub(super) shares: Vec<Share>,
}

impl LeftSession {
    /// The leased tensors.
    pub(crate) fn tensors(&self) -> Vec<Id> {
        self.leases.keys().map(|(id, _)| (*id).into()).collect()
    }
}

/// Sessions without a connection whose leases are kept. All times are by the daemon's clock.
pub(crate) struct Disconnected {
    sessions: HashMap<u64, Waiting>,
    /// The number of sessions from which on clients that have some of them cannot begin another one.
    many: usize,
    /// The end of the pause after the last check.
    pause_until: Duration,
    /// Whether the daemon stops.
    stopped: bool,
}

struct Waiting {
    left: LeftSession,
    /// The time of the next check.
    check_at: Duration,
    /// The interval from the next check to the one after it.
    interval: Duration,
}

impl Disconnected {
    pub(crate) fn new(many: usize) -> Self {
        Self { sessions: HashMap::new(), many, pause_until: Duration::ZERO, stopped: false }
    }

    /// Whether the client of process `pid` has to drop mapped tensors before it begins another session.
    pub(crate) fn is_full_for(&self, pid: i32) -> bool {
        self.sessions.len() >= self.many && self.sessions.values().any(|waiting| waiting.left.client.pid == pid)
    }

    /// Adds leases to those that are kept. Their session is to be checked at once.
    ///
    /// # Errors
    /// The leases when there are too many sessions, or the daemon stops.
    pub(crate) fn add(&mut self, left: LeftSession, now: Duration) -> Result<(), LeftSession> {
        if self.stopped || self.sessions.len() >= SESSIONS_FACTOR.saturating_mul(self.many) {
            return Err(left);
        }
        self.sessions.insert(left.session, Waiting { left, check_at: now, interval: CHECK_INTERVAL_MIN });
        Ok(())
    }

    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn count(&self) -> usize {
        self.sessions.len()
    }

    pub(crate) fn has(&self, session: u64) -> bool {
        self.sessions.contains_key(&session)
    }

    /// The time of the next check.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        let first = self.sessions.values().map(|waiting| waiting.check_at).min()?;
        Some(first.max(self.pause_until))
    }

    /// The sessions to check at `now`: those that are new, often; then all others together. [`checked`](Self::checked) follows.
    pub(crate) fn due(&mut self, now: Duration) -> Vec<(u64, SessionClient)> {
        if now < self.pause_until {
            return Vec::new();
        }
        let is_old = |waiting: &Waiting| waiting.interval == CHECK_INTERVAL_MAX;
        let all_old = self.sessions.values().any(|waiting| is_old(waiting) && waiting.check_at <= now);
        let mut due = Vec::new();
        for (session, waiting) in &mut self.sessions {
            if waiting.check_at <= now || (all_old && is_old(waiting)) {
                waiting.check_at = now + waiting.interval;
                waiting.interval = (2 * waiting.interval).min(CHECK_INTERVAL_MAX);
                due.push((*session, waiting.left.client));
            }
        }
        due
    }

    /// Takes out the sessions that a check, from `began` to `now`, has found closed.
    pub(crate) fn checked(&mut self, closed: &[u64], began: Duration, now: Duration) -> Vec<LeftSession> {
        self.pause_until = now + (PAUSE_FACTOR * now.saturating_sub(began)).min(PAUSE_MAX);
        closed.iter().filter_map(|session| self.sessions.remove(session)).map(|waiting| waiting.left).collect()
    }

    /// Takes out the leases of those sessions that `is_over` selects.
    pub(crate) fn take(&mut self, is_over: impl Fn(u64, &SessionClient) -> bool) -> Vec<LeftSession> {
        let over = self.sessions.extract_if(|session, waiting| is_over(*session, &waiting.left.client));
        over.map(|(_, waiting)| waiting.left).collect()
    }

    /// Takes out the shares of devices of those sessions that `is_former` selects.
    pub(crate) fn take_shares(&mut self, is_former: impl Fn(u64, &SessionClient) -> bool) -> Vec<Share> {
        let all = self.sessions.values_mut().map(|waiting| &mut waiting.left);
        let former = all.filter(|left| is_former(left.session, &left.client));
        former.flat_map(|left| std::mem::take(&mut left.shares)).collect()
    }

    /// Takes out all leases. No more are kept.
    pub(crate) fn stop(&mut self) -> Vec<LeftSession> {
        self.stopped = true;
        self.take(|_, _| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn left(session: u64) -> LeftSession {
        let client = SessionClient { pid: 1, was: None, locked: true };
        LeftSession { session, client, leases: HashMap::new(), shares: Vec::new() }
    }

    const fn us(number: u64) -> Duration {
        Duration::from_micros(number)
    }

    #[test]
    fn new_session_is_checked_often_and_old_sessions_together() {
        let mut all = Disconnected::new(10);
        assert_eq!(all.next_due(), None);
        assert!(all.add(left(1), us(0)).is_ok());
        let mut times = Vec::new();
        for _ in 0..10 {
            let now = all.next_due().unwrap();
            assert_eq!(all.due(now).len(), 1);
            assert!(all.due(now).is_empty(), "each check is made once");
            assert!(all.checked(&[], now, now).is_empty());
            times.push(now.as_millis());
        }
        assert_eq!(times, [0, 1, 3, 7, 15, 31, 63, 127, 227, 327]);
        assert!(all.add(left(2), us(410_000)).is_ok());
        while all.sessions[&2].interval < CHECK_INTERVAL_MAX {
            let now = all.next_due().unwrap();
            all.due(now);
        }
        let now = all.next_due().unwrap();
        assert_eq!((now, all.due(now).len()), (us(527_000), 2));
        assert_eq!(all.next_due(), Some(us(627_000)));
    }

    #[test]
    fn sessions_are_bounded_and_a_daemon_that_stops_keeps_none() {
        let mut all = Disconnected::new(1);
        assert!((0..SESSIONS_FACTOR as u64).all(|session| all.add(left(session), us(0)).is_ok()));
        assert!(all.add(left(9), us(0)).is_err() && all.is_full_for(1) && !all.is_full_for(2));
        assert_eq!(all.stop().len(), SESSIONS_FACTOR);
        assert!(all.add(left(9), us(0)).is_err() && all.next_due().is_none());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Sessions are left and closed at any times, and a check takes time for each session. No session is released while it is
        /// open; each is released at most one interval, one check and one pause after it was closed; checks take a tenth of the time.
        #[test]
        fn closed_sessions_are_released_in_time(
            plan in proptest::collection::vec((0_u64..500_000, 0_u64..500_000), 1..40),
            check_us in 0_u64..200,
        ) {
            let mut all = Disconnected::new(plan.len());
            let closes = |session: u64| us(plan[session as usize].0 + plan[session as usize].1);
            let mut coming: Vec<(Duration, u64)> =
                plan.iter().enumerate().map(|(session, (added, _))| (us(*added), session as u64)).collect();
            coming.sort_unstable();
            coming.reverse();
            let (mut checking, mut released) = (Duration::ZERO, 0);
            let longest = us(check_us * plan.len() as u64);
            let start = coming.last().map_or(Duration::ZERO, |(added, _)| *added);
            while released < plan.len() {
                let due = all.next_due();
                if let Some((added, session)) = coming.pop_if(|(added, _)| due.is_none_or(|due| *added <= due)) {
                    prop_assert!(all.add(left(session), added).is_ok());
                    continue;
                }
                let began = due.unwrap();
                let sessions: Vec<u64> = all.due(began).into_iter().map(|(session, _)| session).collect();
                prop_assert!(!sessions.is_empty(), "nothing was due at the time of the next check");
                let ended = began + us(check_us * sessions.len() as u64);
                checking += ended - began;
                let closed: Vec<u64> = sessions.into_iter().filter(|session| closes(*session) <= began).collect();
                for left in all.checked(&closed, began, ended) {
                    let (added, open) = plan[left.session as usize];
                    // Intervals double, and from 64 ms on the session is checked together with the old ones.
                    let doubled = us(open) + CHECK_INTERVAL_MIN;
                    let interval = if doubled < us(64_000) { doubled } else { CHECK_INTERVAL_MAX };
                    let latest = us(added + open) + interval + (PAUSE_FACTOR + 2) * longest;
                    prop_assert!(ended <= latest, "{ended:?}, {latest:?} at the latest");
                    released += 1;
                }
                prop_assert!((PAUSE_FACTOR + 1) * checking <= all.pause_until - start);
            }
            prop_assert!(all.next_due().is_none() && coming.is_empty());
        }
    }
}
