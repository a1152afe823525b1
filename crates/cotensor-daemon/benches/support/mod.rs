//! Processes of the benches, their messages, and figures.
#![allow(dead_code, reason = "each bench uses some of it")]

use cotensor_daemon::{Config, Role, Service};
use cotensor_rpc::Decoder;
use rustix::process::{Pid, Signal, kill_process};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The bytes of an echo, in each direction.
pub(crate) const ECHO_BYTES: usize = 200;

/// Runs what the arguments of this process name: `measure` without any, the echo, or the daemon with a configuration.
pub(crate) fn run(measure: impl FnOnce(), serve_echo: impl FnOnce(&Path), config: impl FnOnce() -> Config) {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [_, "--serve-echo", socket] => serve_echo(Path::new(socket)),
        [_, "--serve-daemon", socket] => serve_daemon(socket, Role::Foreground, config()),
        [_, "--serve-daemon", socket, Role::FLAG, role] => serve_daemon(socket, role.parse().unwrap(), config()),
        _ => measure(),
    }
}

/// As `cotensor serve`: a server, and a supervisor that receives every publication.
fn serve_daemon(socket: &str, role: Role, config: Config) {
    let config = Config { socket: socket.into(), ..config };
    cotensor_daemon::run(role, Service { config, http: None }, |_| {}).unwrap();
}

/// A process of this program that serves at a socket.
pub(crate) struct Server(Child);

impl Server {
    /// Starts the echo (`--serve-echo`) or the daemon (`--serve-daemon`), and waits for it.
    pub(crate) fn start(what: &str, socket: &Path) -> Self {
        let me = std::env::current_exe().unwrap();
        let child = Command::new(me).arg(what).arg(socket).stdin(Stdio::null()).spawn().unwrap();
        while UnixStream::connect(socket).is_err() {
            std::thread::sleep(Duration::from_millis(5));
        }
        Self(child)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // In order, so that a daemon's server ends, too.
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }
}

/// An echo whose answer brings a descriptor.
pub(crate) fn receive(stream: &mut UnixStream) -> OwnedFd {
    stream.write_all(&[1; ECHO_BYTES]).unwrap();
    let mut decoder = Decoder::default();
    loop {
        if let Some(frame) = decoder.take().unwrap() {
            return frame.fds.into_iter().next().unwrap();
        }
        assert!(decoder.fill(stream.as_fd()).unwrap() > 0);
    }
}

pub(crate) fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

pub(crate) fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

pub(crate) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
