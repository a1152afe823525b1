//! Leases, slabs and claims of a former server that wait for their sessions to resume.

use super::journal::Member;
use crate::segment::{Inode, Slab};
use cotensor_client::protocol::Id;
use cotensor_memory::process::state as process_state;
use cotensor_store::{Key, Lease, SegmentCharge, Ticket};
use rustix::process::{Pid, test_kill_process};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

/// The most processes that an error message names.
const NAMED_MAX: usize = 5;

/// What waits for its users.
#[derive(Default)]
pub(crate) struct Orphans {
    pub(super) leases: Vec<Lease>,
    /// Slabs whose sessions have not come back.
    pub(super) slabs: HashMap<Inode, (Arc<Slab>, SegmentCharge)>,
    /// Claims whose sessions have not come back: nobody else computes them meanwhile.
    pub(super) tickets: HashMap<Key, Ticket>,
    /// Sessions that have not come back, and their processes.
    pub(super) sessions: HashMap<u64, Member>,
    /// When nobody is waited for any more.
    pub(super) until: Option<Instant>,
}

/// For each lease and each claim that a session wants to take up again, what it is now.
pub(crate) type TakenUp = (Vec<Option<Id>>, Vec<Option<u64>>);

impl Orphans {
    /// The slab that waited, if one did: its session has it now.
    pub(crate) fn take_slab(&mut self, inode: Inode) -> Option<(Arc<Slab>, SegmentCharge)> {
        self.slabs.remove(&inode)
    }

    /// Why all this is kept still: for people.
    pub(super) fn reason(&self, now: Instant) -> Option<String> {
        let left = self.until.filter(|_| !self.leases.is_empty() || !self.slabs.is_empty())?;
        let processes: BTreeSet<i32> = self.sessions.values().map(|member| member.pid).filter(|pid| *pid > 0).collect();
        let mut named: Vec<String> = processes.iter().take(NAMED_MAX).map(i32::to_string).collect();
        if self.sessions.values().any(|member| member.pid <= 0) {
            named.push("one of another namespace".to_owned());
        }
        if processes.len() > NAMED_MAX {
            named.push(format!("{} more", processes.len() - NAMED_MAX));
        }
        let seconds = left.saturating_duration_since(now).as_secs() + 1;
        (!named.is_empty()).then(|| {
            format!(
                "what was used when the server was replaced is kept until these processes are back, for {seconds} s at \
                 most: {}",
                named.join(", ")
            )
        })
    }
}

/// Whether a process lives, as far as this one can tell: one that has died and was not waited for does not; one of another
/// namespace, whose number is 0 here, may.
pub(super) fn lives(pid: i32) -> bool {
    if pid <= 0 {
        return true;
    }
    let exists = Pid::from_raw(pid).is_some_and(|pid| test_kill_process(pid) != Err(rustix::io::Errno::SRCH));
    exists && !matches!(process_state(pid.unsigned_abs()), Some('Z' | 'X'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dead_process_is_not_alive() {
        assert!(lives(std::process::id() as i32));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id() as i32;
        let start = Instant::now();
        while lives(pid) && start.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!lives(pid), "dead, though nobody has waited for it");
        child.wait().unwrap();
        assert!(!lives(pid) && lives(0), "of another namespace nothing is known");
    }
}
