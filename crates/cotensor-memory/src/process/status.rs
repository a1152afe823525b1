//! The state and the relatives of a process, from `/proc/PID/stat`.

use super::procfs::read;

/// The run state of a process as the kernel abbreviates it: `T` is stopped, `Z` is a zombie. `None` for a process that
/// does not exist.
pub fn state(pid: u32) -> Option<char> {
    Some(state_and_parent(pid)?.0)
}

/// The parent of a process. `None` for a process that does not exist or is dead.
pub fn parent(pid: u32) -> Option<u32> {
    let (state, parent) = state_and_parent(pid)?;
    (!matches!(state, 'Z' | 'X')).then_some(parent)
}

/// The living children of a process.
pub fn children(pid: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|&child| parent(child) == Some(pid)).collect()
}

/// The command name before these fields stands in parentheses and may have any characters, parentheses included.
fn state_and_parent(pid: u32) -> Option<(char, u32)> {
    let stat = read(&format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit(')').next()?.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn zombie_has_a_state_but_no_parent() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let (me, pid) = (std::process::id(), child.id());
        assert_eq!((parent(pid), children(me).contains(&pid)), (Some(me), true));
        drop(child.stdin.take());
        // Waits for the end without reaping the child.
        let ended = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
        let id = rustix::process::Pid::from_child(&child);
        rustix::process::waitid(rustix::process::WaitId::Pid(id), ended).unwrap();
        assert_eq!((state(pid), parent(pid), children(me).contains(&pid)), (Some('Z'), None, false));
        child.wait().unwrap();
        assert_eq!(state(pid), None);
    }
}
