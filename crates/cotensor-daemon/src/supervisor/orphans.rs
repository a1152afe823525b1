//! Leases, slabs and claims of a former server that wait for their sessions to resume.

use super::journal::SessionClient;
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

/// State of sessions that have not resumed.
#[derive(Default)]
pub(crate) struct Orphans {
    pub(super) leases: Vec<Lease>,
    /// Slabs by their inodes.
    pub(super) slabs: HashMap<Inode, (Arc<Slab>, SegmentCharge)>,
    /// Claims. No other session computes them meanwhile.
    pub(super) tickets: HashMap<Key, Ticket>,
    /// The sessions and their processes.
    pub(super) sessions: HashMap<u64, SessionClient>,
    /// The end of the wait.
    pub(super) until: Option<Instant>,
}

/// The result of a resume: for each lease the tensor, for each claim the ticket.
pub(crate) type Resumed = (Vec<Option<Id>>, Vec<Option<u64>>);

impl Orphans {
    /// Takes out a slab whose session has reopened it.
    pub(crate) fn take_slab(&mut self, inode: Inode) -> Option<(Arc<Slab>, SegmentCharge)> {
        self.slabs.remove(&inode)
    }

    /// The reason why this memory is still in use, for an error message.
    pub(super) fn reason(&self, now: Instant) -> Option<String> {
        let left = self.until.filter(|_| !self.leases.is_empty() || !self.slabs.is_empty())?;
        let processes: BTreeSet<i32> = self.sessions.values().map(|client| client.pid).filter(|pid| *pid > 0).collect();
        let mut named: Vec<String> = processes.iter().take(NAMED_MAX).map(i32::to_string).collect();
        if self.sessions.values().any(|client| client.pid <= 0) {
            named.push("one of another namespace".to_owned());
        }
        if processes.len() > NAMED_MAX {
            named.push(format!("{} more", processes.len() - NAMED_MAX));
        }
        let seconds = left.saturating_duration_since(now).as_secs() + 1;
        (!named.is_empty()).then(|| {
            format!(
                "leased memory is kept until these processes have reconnected, for {seconds} s at most: {}",
                named.join(", ")
            )
        })
    }
}

/// Whether a process is alive. A zombie is not; a process of another PID namespace, whose number is 0 here, may be.
pub(super) fn is_alive(pid: i32) -> bool {
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
        assert!(is_alive(std::process::id() as i32));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id() as i32;
        let start = Instant::now();
        while is_alive(pid) && start.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!is_alive(pid), "a zombie is dead");
        child.wait().unwrap();
        assert!(!is_alive(pid) && is_alive(0), "a process of another namespace may be alive");
    }
}
