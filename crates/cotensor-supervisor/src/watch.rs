//! The server watches its supervisor, and starts another one when the supervisor dies.

use crate::channel::{HandoverHeader, hand_over};
use crate::launch::{Image, Role};
use crate::link::{SUPERVISOR_CHECK_INTERVAL, SupervisorLink};
use crate::process::{Parent, STABLE_UPTIME};
use crate::signals::stop_this_process;
use cotensor_core::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A daemon whose first supervisor was killed stops after this time without clients.
const ORPHAN_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// The interval between two checks for clients.
const ORPHAN_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The time from a supervisor that failed to the next one.
const SUPERVISOR_RESTART_DELAY: Duration = Duration::from_secs(1);

/// The connection to the supervisor, and its process.
pub struct Watch {
    link: Arc<SupervisorLink>,
    socket: UnixStream,
    supervisor: SupervisorProcess,
}

impl Watch {
    pub(crate) fn new(link: Arc<SupervisorLink>, socket: UnixStream, supervisor: SupervisorProcess) -> Self {
        Self { link, socket, supervisor }
    }

    /// Replaces a supervisor that dies, on a thread. `is_used` says whether clients use this server: without its first supervisor and
    /// without clients it stops.
    ///
    /// # Errors
    /// `Io` when the thread cannot be started.
    pub fn start(self, is_used: impl Fn() -> bool + Send + 'static) -> Result<()> {
        let watch = move || self.link.watch(self.socket, self.supervisor, &is_used);
        let started = std::thread::Builder::new().name("supervisor".to_owned()).spawn(watch);
        started.map(drop).map_err(|error| Error::io("watching the supervisor", &error))
    }
}

impl SupervisorLink {
    /// Waits for the end of the supervisor and starts the next one, as long as this server runs.
    fn watch(&self, mut socket: UnixStream, mut supervisor: SupervisorProcess, is_used: &dyn Fn() -> bool) {
        let mut image = Image::default();
        loop {
            let began = Instant::now();
            self.wait_for_end(&socket, is_used);
            if self.stopping.load(Ordering::SeqCst) {
                return;
            }
            image = image.next(began.elapsed() >= STABLE_UPTIME);
            // The supervisor may be stopped instead of dead. When continued, it would start a second server beside the
            // one of the next supervisor.
            supervisor.end();
            tracing::warn!("the supervisor died; starting another");
            self.orphaned.store(true, Ordering::SeqCst);
            (socket, supervisor) = loop {
                match self.start_supervisor(image) {
                    Ok(next) => break next,
                    Err(error) => tracing::error!("a supervisor was not started: {error}"),
                }
                // Without a supervisor, the death of the server would lose the tensors: the running program is tried at
                // once.
                if image == Image::Running {
                    std::thread::sleep(SUPERVISOR_RESTART_DELAY);
                }
                image = image.next(false);
                if self.stopping.load(Ordering::SeqCst) {
                    return;
                }
            };
        }
    }

    /// Waits for the end of the connection. Stops a daemon whose first supervisor was killed and that has no client.
    fn wait_for_end(&self, socket: &UnixStream, is_used: &dyn Fn() -> bool) {
        let mut timeout = self.orphaned.load(Ordering::SeqCst).then_some(ORPHAN_CHECK_INTERVAL);
        let mut used = Instant::now();
        while !has_ended(socket, timeout) {
            if is_used() {
                used = Instant::now();
            } else if timeout.is_some() && used.elapsed() > ORPHAN_IDLE_TIMEOUT {
                tracing::warn!("the first supervisor was killed and no client is connected: stopping");
                stop_this_process();
                timeout = None;
            }
        }
    }

    fn start_supervisor(&self, image: Image) -> Result<(UnixStream, SupervisorProcess)> {
        let io = |error| Error::io("starting a supervisor", &error);
        let (ours, theirs) = UnixStream::pair().map_err(io)?;
        let copy = ours.try_clone().map_err(io)?;
        // Events wait for the lock from here on, so that the supervisor misses none.
        let mut state = self.state();
        state.socket = None;
        let mut supervisor = SupervisorProcess::Child(self.launch.start(image, Role::Supervisor, theirs)?);
        let header = HandoverHeader { orphaned: true, ..self.header.clone() };
        if let Err(error) = hand_over(&ours, header, &state.sockets, None, &state.journal) {
            supervisor.end();
            return Err(error);
        }
        copy.set_write_timeout(Some(SUPERVISOR_CHECK_INTERVAL)).map_err(io)?;
        (state.socket, state.supervisor) = (Some(copy), supervisor.pid());
        Ok((ours, supervisor))
    }
}

/// Waits until the supervisor's end of the connection closes. The supervisor sends nothing, so a readable connection has ended.
///
/// `poll` waits for this alone. The kernel wakes a blocked `read` each time the supervisor takes an event from the other direction.
fn has_ended(socket: &UnixStream, timeout: Option<Duration>) -> bool {
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match poll(&mut [PollFd::new(socket, PollFlags::IN)], timeout.as_ref()) {
        Ok(ready) => ready > 0,
        Err(error) => error != Errno::INTR,
    }
}

/// The supervisor's process.
pub(crate) enum SupervisorProcess {
    /// It started this server, unless it died before this server began.
    Parent(Option<Parent>),
    /// A replacement, started by this server.
    Child(Child),
}

impl SupervisorProcess {
    pub(crate) fn pid(&self) -> Option<u32> {
        match self {
            Self::Parent(parent) => parent.as_ref().map(Parent::pid),
            Self::Child(child) => Some(child.id()),
        }
    }

    /// Ends it: two supervisors would start two servers on one socket.
    fn end(&mut self) {
        match self {
            Self::Parent(parent) => {
                if let Some(parent) = parent {
                    parent.end();
                }
            }
            Self::Child(child) => {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}
