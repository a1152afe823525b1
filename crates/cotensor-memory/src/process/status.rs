//! The state and the relatives of a process, from `/proc/PID/stat`.

use super::procfs::read;

/// The run state of a process as the kernel abbreviates it: `T` is stopped, `Z` is a zombie. `None` for a process that
/// does not exist.
pub fn state(pid: u32) -> Option<char> {
    Some(stat(pid)?.state)
}

/// Whether a process is dead or dies: its descriptors are closed or will be. True for a process that does not exist.
pub fn is_exiting(pid: u32) -> bool {
    stat(pid).is_none_or(|stat| matches!(stat.state, 'Z' | 'X') || stat.flags & PF_EXITING != 0)
}

/// The parent of a process. `None` for a process that does not exist or is dead.
pub fn parent(pid: u32) -> Option<u32> {
    stat(pid).filter(|stat| !matches!(stat.state, 'Z' | 'X')).map(|stat| stat.parent)
}

/// The living children of a process.
pub fn children(pid: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|&child| parent(child) == Some(pid)).collect()
}

/// The flag of the kernel for a process that exits. It is set before the descriptors are closed.
const PF_EXITING: u64 = 4;

struct Stat {
    state: char,
    parent: u32,
    flags: u64,
}

/// The command name before these fields stands in parentheses and may have any characters, parentheses included.
fn stat(pid: u32) -> Option<Stat> {
    let stat = read(&format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit(')').next()?.split_whitespace();
    let (state, parent) = (fields.next()?.chars().next()?, fields.next()?.parse().ok()?);
    // Between them: process group, session, terminal and its process group.
    Some(Stat { state, parent, flags: fields.nth(4)?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn zombie_has_a_state_but_no_parent() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let (me, pid) = (std::process::id(), child.id());
        assert_eq!((parent(pid), children(me).contains(&pid), is_exiting(pid)), (Some(me), true, false));
        drop(child.stdin.take());
        // Waits for the end without reaping the child.
        let ended = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
        let id = rustix::process::Pid::from_child(&child);
        rustix::process::waitid(rustix::process::WaitId::Pid(id), ended).unwrap();
        assert_eq!((state(pid), parent(pid), children(me).contains(&pid)), (Some('Z'), None, false));
        assert!(is_exiting(pid));
        child.wait().unwrap();
        assert!(state(pid).is_none() && is_exiting(pid));
    }
}
