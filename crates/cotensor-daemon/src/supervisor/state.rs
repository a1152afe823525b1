//! The state of a supervisor, and the loop that runs one server after another.

use super::channel::{Handover, HandoverHeader, Message, Receiver, Sockets, hand_over, listening_from};
use super::journal::{Event, Journal};
use super::process::{self, Image, Launch, STABLE_UPTIME, Server};
use super::successor::{self, SuccessorSocket};
use super::systemd::{Held, Manager};
use crate::config::{HEAP_TRIM_DELAY, SOCKET_CHECK_INTERVAL};
use crate::index::INDEX_SLOTS;
use crate::signals::StopSignals;
use crate::spill::remove_folder;
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_memory::SharedIndex;
use cotensor_memory::process::{raise_fd_limit, trim_heap};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio::io::Interest;

/// Events that arrive within this time are read together.
const EVENT_BATCH_INTERVAL: Duration = Duration::from_millis(1);
/// The time for a server to stop. A daemon stops within a second; the rest of it is for removing the files.
const STOP_TIMEOUT: Duration = Duration::from_millis(500);
const _: () = assert!(STOP_TIMEOUT.as_millis() + 2 * process::EXIT_TIMEOUT.as_millis() <= 700);
/// The time for a server to take the state over.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// The supervisor gives up when it could not start a server for this long.
const RESTART_TIMEOUT: Duration = Duration::from_secs(60);
/// The delay after a server that failed to start. It doubles with each attempt.
const RESTART_DELAY_MIN: Duration = Duration::from_millis(20);
const RESTART_DELAY_MAX: Duration = Duration::from_millis(500);

/// The state of a supervisor. Dropping it closes the sockets first, so that no client waits while memory is freed.
pub(super) struct SupervisorState {
    pub(super) header: HandoverHeader,
    pub(super) sockets: Sockets,
    /// The current server's index, which this process can write.
    index: Option<SharedIndex>,
    journal: Journal,
    /// The folder of spilled tensors.
    pub(super) spill: Option<PathBuf>,
    manager: Option<Manager>,
}

impl Drop for SupervisorState {
    fn drop(&mut self) {
        if !self.sockets.listening.is_owner() {
            return;
        }
        // Another daemon has this socket, and its files are in the folder.
        let replaced = !self.sockets.listening.has_lock();
        // The socket goes first, so that no client waits. The lock keeps other daemons away until all files are removed.
        self.sockets.listening.remove();
        for file in self.journal.files() {
            drop(std::fs::remove_file(&file.path));
        }
        if let Some(folder) = self.spill.as_ref().filter(|_| !replaced) {
            remove_folder(folder);
        }
    }
}

/// How the supervision of a server ended.
enum End {
    Stopped,
    Died,
    /// A successor takes the state over.
    Inherited(UnixStream),
}

impl SupervisorState {
    /// The state of a daemon without tensors.
    ///
    /// # Errors
    /// `Io` when the system has no random numbers.
    pub(super) fn new(sockets: Sockets) -> Result<Self> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(|error| Error::new(ErrorKind::Io, error.to_string()))?;
        let socket = sockets.listening.path().to_path_buf();
        let header =
            HandoverHeader { socket, secret, servers: 0, server: None, index_slots: 0, http: false, orphaned: false };
        Ok(Self { header, sockets, index: None, journal: Journal::default(), spill: None, manager: None })
    }

    /// The state from a handover. This process now owns the socket's file.
    pub(super) fn of(handover: Handover) -> Self {
        let Handover { header, mut sockets, journal, .. } = handover;
        sockets.listening.own();
        Self { header, sockets, index: None, journal, spill: None, manager: None }
    }

    /// The state that the service manager held.
    ///
    /// # Errors
    /// `Io` when the socket was removed and cannot be made again.
    pub(super) fn held(held: Held, manager: Option<&Manager>) -> Result<Self> {
        let Held { header, mut sockets, journal } = held;
        sockets.listening.own();
        if sockets.listening.mend()?
            && let Some(manager) = manager
        {
            manager.forget_listening();
        }
        tracing::info!("the service manager held {} tensors", journal.len());
        Ok(Self { header, sockets, index: None, journal, spill: None, manager: None })
    }

    /// The number of tensors.
    pub(super) fn tensors(&self) -> usize {
        self.journal.len()
    }

    /// Runs servers, beginning with `first` if it is running already, until this process or the server is asked to stop, or a
    /// successor takes over. Calls `ready` for each server that serves, with its epoch and its process.
    ///
    /// # Errors
    /// `Io` when the first server cannot be started, or none for a minute.
    pub(super) fn keep(
        mut self,
        launch: &Launch,
        first: Option<(Server, Receiver)>,
        mut successors: Option<SuccessorSocket>,
        mut ready: impl FnMut(u64, Option<u32>),
    ) -> Result<()> {
        raise_fd_limit();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Error::io("starting the supervisor", &error))?;
        let mut serving = first.is_some();
        // When a server last served. A daemon that has no state yet may fail at once.
        let mut served = (serving || self.tensors() > 0).then(Instant::now);
        let (mut next, mut delay, mut image) = (first, RESTART_DELAY_MIN, Image::default());
        runtime.block_on(async {
            let mut stop = StopSignals::new()?;
            loop {
                let began = Instant::now();
                let mut told = |epoch, pid| {
                    serving = true;
                    ready(epoch, pid);
                };
                let end = match next.take().map_or_else(|| self.start(launch, image), Ok) {
                    Ok((server, receiver)) => {
                        self.live_with(server, receiver, &mut stop, successors.as_mut(), &mut told).await
                    }
                    Err(error) => Err(error),
                };
                if std::mem::take(&mut serving) {
                    served = Some(Instant::now());
                }
                match end {
                    Ok(End::Stopped) => {
                        self.stopping();
                        return Ok(());
                    }
                    Ok(End::Inherited(successor)) => match self.leave_to(successor) {
                        Ok(()) => return Ok(()),
                        Err(error) => tracing::error!("the handover to the successor failed: {error}"),
                    },
                    Ok(End::Died) if served.is_none() => {
                        return Err(Error::new(ErrorKind::Io, "the server ended before it was ready"));
                    }
                    Ok(End::Died) => {
                        tracing::warn!("the server died; the next one gets its {} tensors", self.tensors());
                    }
                    Err(error) if served.is_none() => return Err(error),
                    Err(error) => tracing::error!("the server failed: {error}"),
                }
                if served.is_some_and(|served| served.elapsed() > RESTART_TIMEOUT) {
                    let message = format!("no server can be started; {} tensors are lost", self.tensors());
                    return Err(Error::new(ErrorKind::Io, message));
                }
                let lived = began.elapsed() >= STABLE_UPTIME;
                image = image.next(lived);
                delay = if lived { RESTART_DELAY_MIN } else { (delay * 2).min(RESTART_DELAY_MAX) };
                tokio::select! {
                    () = tokio::time::sleep(if lived { Duration::ZERO } else { delay / 2 }) => {}
                    _ = stop.received() => {
                        self.stopping();
                        return Ok(());
                    }
                }
            }
        })
    }

    fn stopping(&self) {
        if let Some(manager) = &self.manager {
            manager.stopping();
        }
    }

    /// Starts a server and hands the state to it.
    fn start(&mut self, launch: &Launch, image: Image) -> Result<(Server, Receiver)> {
        self.header.servers += 1;
        if let Some(manager) = &mut self.manager {
            // Session numbers contain the number of the server, so it must not be used twice.
            manager.rewrite(&self.header, &self.journal)?;
        }
        let io = |error| Error::io("starting a server", &error);
        let (ours, theirs) = UnixStream::pair().map_err(io)?;
        let index = SharedIndex::create(INDEX_SLOTS)?;
        let mut server = launch.server(image, theirs)?;
        let header = HandoverHeader { server: server.pid, index_slots: index.slots(), ..self.header.clone() };
        let fd = index.fd().try_clone_to_owned().map_err(io)?;
        if let Err(error) = hand_over(&ours, header, &self.sockets, Some(fd), &self.journal) {
            server.end();
            return Err(error);
        }
        self.index = Some(index);
        Ok((server, Receiver::new(ours)))
    }

    /// Adds an event to the journal here and at the service manager.
    fn note(&mut self, change: Event, fds: Vec<OwnedFd>) -> Result<()> {
        if let Some(manager) = &mut self.manager {
            manager.note(&change, &fds);
        }
        let gone = self.journal.apply(change, fds)?;
        if let Some(manager) = &mut self.manager {
            manager.noted(&self.header, &self.journal, gone);
        }
        Ok(())
    }

    /// Takes over the socket and the lock that the server has made again.
    fn moved(&mut self, fds: Vec<OwnedFd>) -> Result<()> {
        // Dropping the former one must not empty the lock's file: it may be the same file.
        self.sockets.listening.disown();
        self.sockets.listening = listening_from(&self.header.socket, &mut fds.into_iter())?;
        self.sockets.listening.own();
        if let Some(manager) = &self.manager {
            manager.forget_listening();
            manager.hold_listening(&self.sockets.listening)?;
        }
        Ok(())
    }

    /// Stores the state at the service manager, and reports events to it from now on.
    ///
    /// # Errors
    /// `Io` when it does not listen.
    pub(super) fn hold_with(&mut self, mut manager: Manager) -> Result<()> {
        manager.hold(&self.header, &self.sockets, &self.journal)?;
        self.manager = Some(manager);
        Ok(())
    }

    /// Hands the state to a successor. The server is dead.
    fn leave_to(&mut self, successor: UnixStream) -> Result<()> {
        hand_over(&successor, self.header.clone(), &self.sockets, None, &self.journal)?;
        if !successor::has_taken(successor) {
            return Err(Error::new(ErrorKind::Io, "the successor did not confirm the handover"));
        }
        self.sockets.listening.disown();
        Ok(())
    }

    async fn live_with(
        &mut self,
        mut server: Server,
        receiver: Receiver,
        stop: &mut StopSignals,
        successors: Option<&mut SuccessorSocket>,
        ready: &mut impl FnMut(u64, Option<u32>),
    ) -> Result<End> {
        let end = self.follow(&server, receiver, stop, successors, ready).await;
        // Before the next server serves: clients must not use this server's index any longer.
        if let Some(index) = self.index.take() {
            index.invalidate();
        }
        match end {
            // No server follows, so there is no need to wait for the end of its system calls.
            Ok(End::Stopped) => server.end_soon(),
            Ok(_) => server.end(),
            Err(_) => {
                server.kill();
                server.end();
            }
        }
        end
    }

    /// Applies the events of a server until it ends.
    async fn follow(
        &mut self,
        server: &Server,
        mut receiver: Receiver,
        stop: &mut StopSignals,
        mut successors: Option<&mut SuccessorSocket>,
        ready: &mut impl FnMut(u64, Option<u32>),
    ) -> Result<End> {
        let io = |error| Error::io("following the server", &error);
        receiver.socket.set_nonblocking(true).map_err(io)?;
        let socket = tokio::net::UnixStream::from_std(receiver.socket.try_clone().map_err(io)?).map_err(io)?;
        let mut asking = successors.as_ref().map(|successors| successors.listener()).transpose()?;
        let mut look = tokio::time::interval(SOCKET_CHECK_INTERVAL);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (mut end, mut deadline) = (End::Died, None);
        if self.index.is_some() {
            deadline = Some(tokio::time::Instant::now() + START_TIMEOUT);
        }
        // When to trim the heap after sessions have ended.
        let mut tidy = None;
        loop {
            let (overdue, untidy) = (until(deadline), until(tidy));
            let asked_for = async {
                match (&asking, &end) {
                    (Some(asking), End::Died) => asking.accept().await,
                    _ => std::future::pending().await,
                }
            };
            tokio::select! {
                ready = socket.readable() => ready.map_err(io)?,
                _ = stop.received(), if !matches!(end, End::Stopped) => {
                    server.ask_to_stop();
                    (end, deadline) = (End::Stopped, Some(tokio::time::Instant::now() + STOP_TIMEOUT));
                    continue;
                }
                asking = asked_for => {
                    if let Some(successor) = asking.ok().and_then(|(successor, _)| successor::admitted(successor)) {
                        // Its last events are read before the loop ends.
                        server.kill();
                        end = End::Inherited(successor);
                    }
                    continue;
                }
                _ = look.tick(), if successors.is_some() => {
                    if let Some(successors) = &mut successors {
                        match successors.mend() {
                            Ok(false) => {}
                            Ok(true) => asking = Some(successors.listener()?),
                            Err(error) => tracing::debug!("no successor finds this daemon: {error}"),
                        }
                    }
                    continue;
                }
                () = overdue => {
                    server.kill();
                    return Ok(end);
                }
                () = untidy => {
                    trim_heap();
                    tidy = None;
                    continue;
                }
            }
            match socket.try_io(Interest::READABLE, || receiver.fill()) {
                Ok(0) => return Ok(end),
                Ok(_) => {}
                Err(error)
                    if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted) => {}
                // The server died with unread messages.
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return Ok(end),
                Err(error) => return Err(io(error)),
            }
            let mut changes = 0;
            while let Some((message, fds)) = receiver.take()? {
                match message {
                    Message::Event(change) => {
                        changes += 1;
                        if matches!(change, Event::SessionEnded(_)) {
                            tidy.get_or_insert_with(|| tokio::time::Instant::now() + HEAP_TRIM_DELAY);
                        }
                        self.note(change, fds)?;
                    }
                    Message::Ready { epoch } => {
                        if matches!(end, End::Died) {
                            deadline = None;
                        }
                        if let Some(manager) = &self.manager {
                            manager.ready(&self.header.socket);
                        }
                        ready(epoch, server.pid);
                    }
                    Message::Moved => self.moved(fds)?,
                    // The answer to the stop signal does not extend the deadline.
                    Message::Stopping if matches!(end, End::Stopped) => {}
                    Message::Stopping => {
                        (end, deadline) = (End::Stopped, Some(tokio::time::Instant::now() + STOP_TIMEOUT));
                    }
                    other => return Err(Error::corrupt(format!("{other:?} from a server"))),
                }
            }
            if changes > 0 {
                // Waking this process for each event would take most of the server's time. A sleep of the runtime would end
                // with the next event.
                std::thread::sleep(EVENT_BATCH_INTERVAL);
            }
        }
    }
}

/// Waits until `time`; forever without one.
async fn until(time: Option<tokio::time::Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}
