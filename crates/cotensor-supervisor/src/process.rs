//! The processes of a daemon: starting and ending them.

use crate::launch::{Image, Launch, Role};
use cotensor_core::{Error, Result};
use cotensor_memory::process::peer_credentials;
use rustix::process::{Pid, Signal, kill_process};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::time::{Duration, Instant};

/// The time for a server to exit before it is killed.
pub(crate) const EXIT_TIMEOUT: Duration = Duration::from_millis(100);

/// A process that ran this long did not fail at its start.
pub(crate) const STABLE_UPTIME: Duration = Duration::from_secs(1);

/// The server of a supervisor.
pub(crate) struct Server {
    /// None if another supervisor started it.
    pub(crate) child: Option<Child>,
    pub(crate) pid: Option<u32>,
}

impl Server {
    /// Starts a server with `socket` as its standard input.
    pub(crate) fn start(launch: &Launch, image: Image, socket: UnixStream) -> Result<Self> {
        let child = launch.start(image, Role::Server, socket)?;
        Ok(Self { pid: Some(child.id()), child: Some(child) })
    }

    /// Sends SIGTERM. The server reports the stop before it ends.
    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    pub(crate) fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// The caller has its end of the socket pair open, so its process number is not reused.
    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Ends it and waits: two servers must not listen on one socket.
    pub(crate) fn end(&mut self) {
        self.end_without_wait();
        if let Some(child) = &mut self.child {
            let _ = child.wait();
        }
    }

    /// Kills it if it does not exit in time. It may still be in a system call on a slow disk afterwards, but runs no
    /// further code.
    pub(crate) fn end_without_wait(&mut self) {
        if !self.wait_for_exit()
            && let Some(child) = &mut self.child
        {
            let _ = child.kill();
            self.wait_for_exit();
        }
    }

    /// Waits for its exit; false after [`EXIT_TIMEOUT`].
    fn wait_for_exit(&mut self) -> bool {
        let Some(child) = &mut self.child else { return true };
        let start = Instant::now();
        while let Ok(None) = child.try_wait() {
            if start.elapsed() >= EXIT_TIMEOUT {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }
}

/// The supervisor that started this server.
pub(crate) struct Parent(Pid);

impl Parent {
    /// The process that made the socket pair, if it is the living parent of this one.
    pub(crate) fn at_the_other_end(socket: &UnixStream) -> Option<Self> {
        let pid = Pid::from_raw(peer_credentials(socket.as_fd()).ok()?.pid?)?;
        Some(Self(pid)).filter(Self::is_alive)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.as_raw_nonzero().get().unsigned_abs()
    }

    /// A dead process is not a parent: another one adopts its children.
    fn is_alive(&self) -> bool {
        rustix::process::getppid() == Some(self.0)
    }

    /// Kills it, and waits for its end.
    pub(crate) fn end(&self) {
        while self.is_alive() {
            let _ = kill_process(self.0, Signal::KILL);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The socket on standard input.
pub(crate) fn standard_input() -> Result<UnixStream> {
    let fd = std::io::stdin().as_fd().try_clone_to_owned();
    let fd = fd.map_err(|error| Error::io("taking standard input over", &error))?;
    if rustix::net::sockopt::socket_domain(&fd) != Ok(rustix::net::AddressFamily::UNIX) {
        return Err(Error::invalid("standard input is not a socket: this is started by `cotensor serve` alone"));
    }
    Ok(fd.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_memory::process;

    #[test]
    fn stopped_process_has_state_t() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Pid::from_raw(child.id() as i32).unwrap();
        kill_process(pid, Signal::STOP).unwrap();
        let start = Instant::now();
        while process::state(child.id()) != Some('T') && start.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(process::state(child.id()), Some('T'));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(process::state(child.id()), None);
    }
}
