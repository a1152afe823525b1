//! The heap of the daemon's processes shrinks after many leases were released.

use crate::support::processes::{Processes, put, settles_empty};
use crate::support::until;
use cotensor_store::{Lease, Retention};

const LEASES: usize = 10_000;
/// The number of leases that stay, spread among the others.
const STAYING: usize = 10;

/// Bytes of a process's heap that are in memory.
fn heap(pid: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() << 10
}

#[test]
fn heap_is_trimmed_after_sessions_end() {
    let processes = Processes::start();
    let (server, supervisor) = (processes.server(), processes.supervisor());
    let before = [server, supervisor].map(heap);
    let (staying, passing) = (processes.connect("staying"), processes.connect("passing"));
    let (mut stay, mut pass): (Vec<Lease>, Vec<Lease>) = (Vec::new(), Vec::new());
    for n in 0..LEASES {
        let stays = n % (LEASES / STAYING) == LEASES / STAYING - 1;
        let (store, held) = if stays { (&staying, &mut stay) } else { (&passing, &mut pass) };
        held.push(put(store, &format!("tensor number {n}"), b"x", Retention::WhileLeased));
    }
    let full = [server, supervisor].map(heap);
    drop((pass, passing));
    until("at least half of the growth is freed", || {
        let now = [server, supervisor].map(heap);
        (0..2).all(|at| now[at].saturating_sub(before[at]) < (full[at] - before[at]) / 2)
    });
    drop((stay, staying));
    settles_empty(&processes);
}
