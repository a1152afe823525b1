//! The state and the relatives of a process, from `/proc/PID/stat`.

use super::procfs::read;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

/// The run state of a process as the kernel abbreviates it: `T` is stopped, `Z` is a zombie. `None` for a process that
/// does not exist.
pub fn state(pid: u32) -> Option<char> {
    Some(stat(pid)?.state)
}

/// Whether a process has ended and its parent has not noticed that. A process whose first thread has ended has the state of a zombie, too,
/// and still has its memory while other threads run.
fn is_zombie(pid: u32) -> bool {
    stat(pid).is_some_and(|stat| matches!(stat.state, 'Z' | 'X') && stat.threads <= 1)
}

/// Whether a process exists and has not ended, also if only its first thread has.
pub fn is_alive(pid: u32) -> bool {
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
    number.is_some_and(|number| test_kill_process(number) != Err(Errno::SRCH)) && !is_zombie(pid)
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
    threads: u64,
}

/// The command name before these fields stands in parentheses and may have any characters, parentheses included.
fn stat(pid: u32) -> Option<Stat> {
    let stat = read(&format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit(')').next()?.split_whitespace();
    let (state, parent) = (fields.next()?.chars().next()?, fields.next()?.parse().ok()?);
    // Between them: process group, session, terminal and its process group.
    let flags = fields.nth(4)?.parse().ok()?;
    // Between them: faults, times and priorities.
    Some(Stat { state, parent, flags, threads: fields.nth(10)?.parse().ok()? })
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
        assert!(is_exiting(pid) && is_zombie(pid) && !is_zombie(me));
        child.wait().unwrap();
        assert!(state(pid).is_none() && is_exiting(pid) && !is_zombie(pid));
    }

    #[test]
    fn process_without_its_first_thread_is_no_zombie() {
        let exit = libc::SYS_exit;
        let program = format!(
            "import ctypes, threading, time\n\
            threading.Thread(target=time.sleep, args=(1000,)).start()\n\
            ctypes.CDLL(None).syscall({exit}, 0)"
        );
        let mut child = Command::new("python3").args(["-c", &program]).spawn().unwrap();
        while state(child.id()) != Some('Z') {
            assert!(child.try_wait().unwrap().is_none(), "the program runs");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(!is_zombie(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
