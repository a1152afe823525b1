//! Starting a process that outlives its parent and shares nothing with it.

use super::inherited::reset_inherited;
use std::io::Error;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

/// The first descriptor after the standard streams.
const FIRST_FD: libc::c_uint = 3;

/// Makes `command` start a process in a session of its own, with no descriptor but its standard streams, and with the
/// signals, priorities and limits of a process that the system starts (`reset_inherited`). The process is not a child of the
/// caller: `spawn` returns a process that ends at once, for which the caller waits ([`wait_for_end`]).
pub fn detach(command: &mut Command) {
    // SAFETY: the closure runs in a copy of this process before the new program. It makes system calls only, which are safe
    // there: it takes no lock, and allocates and changes no memory of the parent.
    unsafe { command.pre_exec(leave_parent) };
}

fn leave_parent() -> std::io::Result<()> {
    // SAFETY: these calls read and write no memory of this process. Descriptors stay open until the new program starts, so that
    // the standard library can report its failure. `clone` with SIGCHLD alone is `fork` without its handlers; the parent of the
    // second copy ends without running any destructor.
    unsafe {
        if libc::setsid() < 0 {
            return Err(Error::last_os_error());
        }
        // Kernels before 5.11 lack this; descriptors of this library are closed in any case.
        libc::syscall(libc::SYS_close_range, FIRST_FD, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
        match libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) {
            0 => {
                reset_inherited();
                Ok(())
            }
            -1 => Err(Error::last_os_error()),
            _ => libc::_exit(0),
        }
    }
}

/// Waits for the process that [`detach`]'s `spawn` returns. A program that ignores `SIGCHLD`, or that waits for all children
/// elsewhere, has collected its status then; the process has ended in any case.
///
/// # Errors
/// Those of waiting.
pub fn wait_for_end(mut child: Child) -> std::io::Result<()> {
    match child.wait() {
        Err(error) if error.raw_os_error() == Some(libc::ECHILD) => Ok(()),
        outcome => outcome.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::parent;
    use std::io::Read;
    use std::process::Stdio;

    #[test]
    fn detached_process_is_no_child_and_has_no_other_descriptor() {
        // A descriptor that a program would inherit.
        let file = tempfile::tempfile().unwrap();
        rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "ls /proc/self/fd; echo pid $$; read end"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        detach(&mut command);
        let mut child = command.spawn().unwrap();
        // `wait` would close it, and the process would end.
        let _stdin = child.stdin.take();
        assert!(child.wait().unwrap().success());
        let mut output = [0; 256];
        let mut text = String::new();
        while !text.contains("pid") || !text.ends_with('\n') {
            let count = child.stdout.as_mut().unwrap().read(&mut output).unwrap();
            assert!(count > 0, "{text}");
            text += std::str::from_utf8(&output[..count]).unwrap();
        }
        let pid: u32 = text.lines().last().unwrap().trim_start_matches("pid ").parse().unwrap();
        assert_ne!(parent(pid), Some(std::process::id()));
        // `ls` opens the folder as descriptor 3.
        assert!(!text.lines().any(|line| line == "4"), "{text}");
    }

    #[test]
    fn missing_program_is_an_error() {
        let mut command = Command::new("/nowhere/cotensor");
        detach(&mut command);
        assert_eq!(command.spawn().unwrap_err().kind(), std::io::ErrorKind::NotFound);
    }
}
