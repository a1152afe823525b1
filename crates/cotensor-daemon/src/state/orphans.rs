//! Leases, slabs and claims of a former server that wait for their sessions to resume.

use super::journal::SessionClient;
use crate::state::segment::{Inode, Slab};
use cotensor_core::MemoryKind;
use cotensor_store::{Key, Lease, SegmentCharge, Ticket};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

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
    /// The end of the wait, by the daemon's clock.
    pub(crate) until: Option<Duration>,
}

impl Orphans {
    /// Whether a session is awaited whose leases are not known.
    pub(crate) fn await_any(&self) -> bool {
        self.sessions.keys().any(|session| !self.left.contains_key(session))
    }

    /// Takes out the state of sessions whose leases are not known. While such sessions are awaited, leases in memory that is used again stay:
    /// clients with locks may have mapped it. Sealed memory stays as it is for all that have mapped it, also without a lease.
    pub(crate) fn give_up(&mut self) -> Self {
        let is_kept = |lease: &Lease| lease.segment().kind() == MemoryKind::Slab;
        let awaits = self.await_any();
        let (kept, leases) = std::mem::take(&mut self.leases).into_iter().partition(|lease| awaits && is_kept(lease));
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
        let left = self.until.filter(|_| !self.leases.is_empty() || !self.slabs.is_empty())?;
        let processes: BTreeSet<i32> = self.sessions.values().map(|client| client.pid).filter(|pid| *pid > 0).collect();
        let mut named: Vec<String> = processes.iter().take(NAMED_MAX).map(i32::to_string).collect();
        if self.sessions.values().any(|client| client.pid <= 0) {
            named.push("one of another namespace".to_owned());
        }
        if processes.len() > NAMED_MAX {
            named.push(format!("{} more", processes.len() - NAMED_MAX));
        }
        let limit = match left.saturating_sub(now).as_secs() {
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
    use crate::testing::{Running, put};
    use cotensor_store::TensorStore;

    #[test]
    fn after_the_wait_leases_in_memory_that_is_used_again_are_kept() {
        let running = Running::start(|_| {});
        let client = running.connect("client");
        let _published = [put(&*client, "small", b"abc"), put(&*client, "sealed", &vec![1; 1 << 20])];
        let store = running.daemon.store();
        let lease = |name| store.get(name, &store.holder("taken over")).unwrap();
        let mut orphans = Orphans { leases: vec![lease("small"), lease("sealed")], ..Orphans::default() };
        orphans.sessions.insert(1, SessionClient { pid: 0, was: None, locked: true });
        let names = |orphans: &Orphans| orphans.leases.iter().map(|lease| lease.name().to_owned()).collect::<Vec<_>>();
        let given_up = orphans.give_up();
        assert_eq!((names(&orphans), names(&given_up)), (vec!["small".to_owned()], vec!["sealed".to_owned()]));
        assert_eq!((orphans.sessions.len(), given_up.sessions.len()), (1, 0), "the wait goes on");
        orphans.left.insert(1, vec![lease("small")]);
        assert_eq!(names(&orphans.give_up()), ["small"], "the leases of the session are known");
        assert_eq!((names(&orphans).len(), orphans.left.len()), (0, 1));
    }
}
