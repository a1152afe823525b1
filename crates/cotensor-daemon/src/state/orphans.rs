//! Leases, slabs and claims of a former server that wait for their sessions to resume.

use crate::state::segment::{Inode, Slab};
use cotensor_core::MemoryKind;
use cotensor_store::{Key, Lease, SegmentCharge, Ticket};
use cotensor_supervisor::SessionClient;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// The least time that leases wait for their sessions: a child of a dead process may hold its leases.
const RECONNECT_TIMEOUT_MIN: Duration = Duration::from_millis(500);
/// The most time that all state waits for an open session: its process may be stopped, or not be scheduled.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(60);
/// The interval between two checks of the sessions.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The most processes that an error message names.
const NAMED_MAX: usize = 5;

/// State of sessions that have not resumed.
#[derive(Default)]
pub(crate) struct Orphans {
    pub(crate) leases: Vec<Lease>,
    /// The leases of sessions that had no connection to the former server.
    pub(crate) left: HashMap<u64, Vec<Lease>>,
    /// Slabs by their inodes.
    pub(crate) slabs: HashMap<Inode, (Arc<Slab>, SegmentCharge)>,
    /// Claims. No other session computes them meanwhile.
    pub(crate) tickets: HashMap<Key, Ticket>,
    /// The sessions and their processes.
    pub(crate) sessions: HashMap<u64, SessionClient>,
    wait: Option<Wait>,
}

/// The wait of a new server, by the daemon's clock.
struct Wait {
    began: Duration,
    /// The time of the next check.
    check_at: Duration,
}

/// A session whose wait is over, with its leases if they are known.
pub(crate) type EndedWait = (u64, Option<Vec<Lease>>);

/// The result of a check. Dropping it releases what no session can resume any more.
#[derive(Default)]
pub(crate) struct Checked {
    pub(crate) ended: Vec<EndedWait>,
    /// The state that was given up.
    pub(crate) given_up: Orphans,
    /// Whether no program is awaited any more that may have memory of devices.
    pub(crate) settled: bool,
}

impl Orphans {
    /// Begins the wait for the sessions.
    pub(crate) fn begin_wait(&mut self, now: Duration) {
        let check_at = if self.sessions.is_empty() { now } else { now + CHECK_INTERVAL };
        self.wait = Some(Wait { began: now, check_at });
    }

    /// The time of the next check; none when the wait is over.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        self.wait.as_ref().map(|wait| wait.check_at)
    }

    /// Ends the waits that are over at `now`. `is_open` tells whether the client of a session may still resume it.
    pub(crate) fn check(&mut self, now: Duration, is_open: impl Fn(u64, &SessionClient) -> bool) -> Checked {
        let Some(wait) = self.wait.as_mut().filter(|wait| wait.check_at <= now) else { return Checked::default() };
        wait.check_at = now + CHECK_INTERVAL;
        let waited = now.saturating_sub(wait.began);
        let (looks, is_late) = (waited >= RECONNECT_TIMEOUT_MIN, waited >= RECONNECT_TIMEOUT);
        let ended =
            self.end_waits(|session, client| (looks && !is_open(session, client)) || (is_late && !client.locked));
        let is_over = self.sessions.is_empty();
        let given_up = if is_over {
            std::mem::take(self)
        } else if is_late || !self.await_any() {
            self.give_up(is_late)
        } else {
            Self::default()
        };
        Checked { ended, given_up, settled: is_late || is_over }
    }

    /// Takes out those sessions that `is_over` selects.
    pub(crate) fn end_waits(&mut self, is_over: impl Fn(u64, &SessionClient) -> bool) -> Vec<EndedWait> {
        let Self { sessions, left, .. } = self;
        let over = sessions.extract_if(|number, client| is_over(*number, client));
        over.map(|(number, _)| (number, left.remove(&number))).collect()
    }

    /// Whether a session is awaited whose leases are not known.
    fn await_any(&self) -> bool {
        self.sessions.keys().any(|session| !self.left.contains_key(session))
    }

    /// Whether a cached tensor needs a lease while sessions are awaited whose leases are not known. Their clients may have mapped memory that is
    /// used again. They may have leased a tensor whose time, which the journal has from an earlier end of a lease, is over.
    pub(crate) fn needs_lease(lease: &Lease) -> bool {
        lease.segment().kind() == MemoryKind::Slab || lease.keep_for().is_some()
    }

    /// Takes out the state of sessions whose leases are not known. While such sessions are awaited, the leases that they need stay. Sealed memory
    /// stays as it is for all that have mapped it, also without a lease.
    fn give_up(&mut self, is_late: bool) -> Self {
        let awaits = self.await_any();
        // A stopped process must not keep tensors with a time for ever. What it has mapped stays as it is.
        let needs =
            |lease: &Lease| if is_late { lease.segment().kind() == MemoryKind::Slab } else { Self::needs_lease(lease) };
        let is_kept = |lease: &Lease| awaits && needs(lease);
        let (kept, leases) = std::mem::take(&mut self.leases).into_iter().partition(is_kept);
        self.leases = kept;
        let (slabs, tickets) = (std::mem::take(&mut self.slabs), std::mem::take(&mut self.tickets));
        Self { leases, slabs, tickets, ..Self::default() }
    }

    /// Takes out a slab whose session has reopened it.
    pub(crate) fn take_slab(&mut self, inode: Inode) -> Option<(Arc<Slab>, SegmentCharge)> {
        self.slabs.remove(&inode)
    }

    /// The reason why this memory is still in use, for an error message.
    pub(crate) fn reason(&self, now: Duration) -> Option<String> {
        let wait = self.wait.as_ref().filter(|_| !self.leases.is_empty() || !self.slabs.is_empty())?;
        let processes: BTreeSet<i32> = self.sessions.values().map(|client| client.pid).filter(|pid| *pid > 0).collect();
        let mut named: Vec<String> = processes.iter().take(NAMED_MAX).map(i32::to_string).collect();
        if self.sessions.values().any(|client| client.pid <= 0) {
            named.push("one of another namespace".to_owned());
        }
        if processes.len() > NAMED_MAX {
            named.push(format!("{} more", processes.len() - NAMED_MAX));
        }
        let limit = match (wait.began + RECONNECT_TIMEOUT).saturating_sub(now).as_secs() {
            0 => String::new(),
            seconds => format!(", for {seconds} s at most"),
        };
        (!named.is_empty()).then(|| {
            format!("leased memory is kept until these processes have reconnected{limit}: {}", named.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Running, put, spec};
    use cotensor_store::ComputationStore;
    use cotensor_store::{Retention, TensorSpec, TensorStore};
    use proptest::prelude::*;

    const fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    #[derive(Clone, Copy, Debug)]
    struct Awaited {
        locked: bool,
        /// Whether its leases are known.
        known: bool,
        /// When its client dies or releases its lock.
        closes: Option<u64>,
        /// When its client resumes it.
        resumes: Option<u64>,
    }

    fn awaited() -> impl Strategy<Value = Awaited> {
        let at = || prop_oneof![Just(None), (0_u64..2000).prop_map(Some), (0_u64..70_000).prop_map(Some)];
        let parts = (any::<bool>(), any::<bool>(), at(), at());
        parts.prop_map(|(locked, known, closes, resumes)| Awaited { locked, known, closes, resumes })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Sessions are resumed and closed at any times, and checks are late. Each is resumed, or ends at the first check after it was closed and after the
        /// least time, or at the end of the wait if its process alone decides. An open session with a lock is awaited for ever.
        #[test]
        fn waits_end_in_time_and_once(
            plan in proptest::collection::vec(awaited(), 0..8),
            delays in proptest::collection::vec(prop_oneof![Just(0_u64), 0_u64..5000], 1..40),
        ) {
            let began = ms(5000);
            let mut orphans = Orphans::default();
            for (number, awaited) in plan.iter().enumerate() {
                let client = SessionClient { pid: 1, was: None, locked: awaited.locked };
                orphans.sessions.insert(number as u64, client);
                if awaited.known {
                    orphans.left.insert(number as u64, Vec::new());
                }
            }
            orphans.begin_wait(began);
            let is_before = |time: Option<u64>, now: Duration| time.is_some_and(|time| began + ms(time) <= now);
            let (mut last, mut settled, mut delays) = (began, false, delays.into_iter().cycle());
            while let Some(due) = orphans.next_due().filter(|due| *due <= began + ms(71_000)) {
                prop_assert!(due == last || due == last + CHECK_INTERVAL);
                let now = due + ms(delays.next().unwrap());
                for (number, awaited) in plan.iter().enumerate() {
                    // A resume between two checks.
                    if is_before(awaited.resumes, now) {
                        let resumed = orphans.end_waits(|session, _| session == number as u64);
                        prop_assert!(resumed.iter().all(|(_, leases)| leases.is_some() == awaited.known));
                    }
                }
                let closed = |session: u64| is_before(plan[session as usize].closes, now);
                let checked = orphans.check(now, |session, _| !closed(session));
                let (looks, is_late) = (now >= began + RECONNECT_TIMEOUT_MIN, now >= began + RECONNECT_TIMEOUT);
                for (session, leases) in &checked.ended {
                    let awaited = plan[*session as usize];
                    prop_assert!((looks && closed(*session)) || (is_late && !awaited.locked), "{session} is open");
                    prop_assert_eq!(leases.is_some(), awaited.known);
                    prop_assert!(!orphans.sessions.contains_key(session) && !orphans.left.contains_key(session));
                }
                let ends = |session: u64| (looks && closed(session)) || (is_late && !plan[session as usize].locked);
                prop_assert!(!orphans.sessions.keys().any(|session| ends(*session)), "a session is late");
                prop_assert!(!checked.settled || is_late || orphans.sessions.is_empty());
                (last, settled) = (now, settled || checked.settled);
            }
            let lasting = orphans.sessions.keys().all(|session| plan[*session as usize].locked);
            prop_assert!(settled && lasting && orphans.next_due().is_some() != orphans.sessions.is_empty());
        }
    }

    #[test]
    fn claims_are_given_up_when_all_leases_are_known() {
        let store = cotensor_store::LocalStore::builder().build();
        let key = Key(cotensor_core::ContentHash::of(b"key"));
        let claimed = store.claim_within(&key, &store.holder("taken over"), Duration::ZERO);
        let Ok(cotensor_store::Claim::Compute(ticket)) = claimed else { panic!("claimed") };
        let mut orphans = Orphans { tickets: HashMap::from([(key, ticket)]), ..Orphans::default() };
        let client = SessionClient { pid: 7, was: None, locked: true };
        orphans.sessions = HashMap::from([(1, client), (2, client)]);
        orphans.left.insert(1, Vec::new());
        orphans.begin_wait(ms(0));
        assert!(orphans.check(ms(99), |_, _| true).given_up.tickets.is_empty(), "no check is due");
        assert!(orphans.check(ms(100), |_, _| true).given_up.tickets.is_empty(), "session 2 may resume its claims");
        assert_eq!(orphans.end_waits(|session, _| session == 2).len(), 1);
        let checked = orphans.check(ms(200), |_, _| true);
        assert!(!checked.given_up.tickets.is_empty() && checked.ended.is_empty() && !checked.settled);
        assert_eq!((orphans.sessions.len(), orphans.next_due()), (1, Some(ms(300))));
        let checked = orphans.check(ms(500), |_, _| false);
        assert_eq!((checked.ended.len(), checked.settled, orphans.next_due()), (1, true, None));
    }

    #[test]
    fn after_the_wait_leases_in_memory_that_is_used_again_and_of_tensors_with_a_time_are_kept() {
        let running = Running::start(|_| {});
        let client = running.connect("client");
        let retention = Retention::Cached { recompute: Duration::ZERO };
        let timed = TensorSpec { retention, keep_for: Some(Duration::from_secs(1)), ..spec("timed", 1 << 20) };
        let timed = client.reserve(timed, &client.holder("")).unwrap().publish().unwrap();
        let _published = [put(&*client, "small", b"abc"), put(&*client, "sealed", &vec![1; 1 << 20]), timed];
        let store = running.daemon.store();
        let lease = |name| store.get(name, &store.holder("taken over")).unwrap();
        let leases = vec![lease("small"), lease("sealed"), lease("timed")];
        let mut orphans = Orphans { leases, ..Orphans::default() };
        orphans.sessions.insert(1, SessionClient { pid: 0, was: None, locked: true });
        let names = |orphans: &Orphans| orphans.leases.iter().map(|lease| lease.name().to_owned()).collect::<Vec<_>>();
        let given_up = orphans.give_up(false);
        assert_eq!(
            (names(&orphans).join(" "), names(&given_up)),
            ("small timed".to_owned(), vec!["sealed".to_owned()])
        );
        assert_eq!((orphans.sessions.len(), given_up.sessions.len()), (1, 0), "the wait goes on");
        let late = orphans.give_up(true);
        assert_eq!((names(&orphans), names(&late)), (vec!["small".to_owned()], vec!["timed".to_owned()]));
        orphans.left.insert(1, vec![lease("small")]);
        assert_eq!(names(&orphans.give_up(true)), ["small"], "the leases of the session are known");
        assert_eq!((names(&orphans).len(), orphans.left.len()), (0, 1));
    }
}
