//! Follows a server: applies its events to the journal until it ends.

use crate::channel::{Message, Receiver};
use crate::journal::Event;
use crate::listening::SOCKET_CHECK_INTERVAL;
use crate::process::{self, Server};
use crate::signals::StopSignals;
use crate::state::Supervisor;
use crate::successor::{self, SuccessorSocket};
use cotensor_core::{Error, Result};
use cotensor_memory::process::trim_heap;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use tokio::io::Interest;

/// The time from a session's end to the trimming of the heap. Sessions that end together are one occasion.
pub const HEAP_TRIM_DELAY: Duration = Duration::from_secs(1);
/// Events that arrive within this time are read together.
const EVENT_BATCH_INTERVAL: Duration = Duration::from_millis(1);
/// The time for a server to stop. A daemon stops within a second; the rest of it is for removing the files.
const STOP_TIMEOUT: Duration = Duration::from_millis(500);
const _: () = assert!(STOP_TIMEOUT.as_millis() + 2 * process::EXIT_TIMEOUT.as_millis() <= 700);
/// The time for a server to take the state over.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// How the supervision of a server ended.
pub(crate) enum End {
    Stopped,
    Died,
    /// A successor takes the state over.
    Succeeded(UnixStream),
}

impl Supervisor {
    /// Applies the events of a server until it ends.
    pub(crate) async fn follow(
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
        let mut listener = successors.as_ref().map(|successors| successors.listener()).transpose()?;
        let mut check = tokio::time::interval(SOCKET_CHECK_INTERVAL);
        check.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (mut end, mut deadline) = (End::Died, None);
        if self.index.is_some() {
            deadline = Some(tokio::time::Instant::now() + START_TIMEOUT);
        }
        // The time to trim the heap after sessions have ended.
        let mut trim_at = None;
        // Whether events came since the last pause.
        let mut has_events = false;
        loop {
            let (overdue, trim_due) = (until(deadline), until(trim_at));
            let accepted = async {
                match (&listener, &end) {
                    (Some(listener), End::Died) => listener.accept().await,
                    _ => std::future::pending().await,
                }
            };
            tokio::select! {
                ready = socket.readable() => ready.map_err(io)?,
                _ = stop.received(), if !matches!(end, End::Stopped) => {
                    server.terminate();
                    (end, deadline) = (End::Stopped, Some(tokio::time::Instant::now() + STOP_TIMEOUT));
                    continue;
                }
                accepted = accepted => {
                    if let Some(successor) = accepted.ok().and_then(|(successor, _)| successor::admitted(successor)) {
                        // The loop reads the server's last events before it ends.
                        server.kill();
                        end = End::Succeeded(successor);
                    }
                    continue;
                }
                _ = check.tick(), if successors.is_some() => {
                    if let Some(successors) = &mut successors {
                        match successors.mend() {
                            Ok(false) => {}
                            Ok(true) => listener = Some(successors.listener()?),
                            Err(error) => tracing::debug!("the socket for successors was not made again: {error}"),
                        }
                    }
                    continue;
                }
                () = overdue => {
                    server.kill();
                    return Ok(end);
                }
                () = trim_due => {
                    trim_heap();
                    trim_at = None;
                    continue;
                }
            }
            match socket.try_io(Interest::READABLE, || receiver.fill()) {
                Ok(0) => return Ok(end),
                Ok(_) => {}
                // All that was sent is read, in as many parts as it has descriptors.
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    if std::mem::take(&mut has_events) {
                        // Waking this process for each event would take most of the server's time. A sleep of the runtime would
                        // end with the next event.
                        std::thread::sleep(EVENT_BATCH_INTERVAL);
                    }
                    continue;
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                // The server died with unread messages.
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return Ok(end),
                Err(error) => return Err(io(error)),
            }
            while let Some((message, fds)) = receiver.take()? {
                match message {
                    Message::Event(event) => {
                        has_events = true;
                        if matches!(event, Event::SessionEnded(_)) {
                            trim_at.get_or_insert_with(|| tokio::time::Instant::now() + HEAP_TRIM_DELAY);
                        }
                        self.apply(event, fds)?;
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
                    Message::Moved => self.replace_listening(fds)?,
                    Message::HttpStarted => self.add_http(fds)?,
                    // The answer to the stop signal does not extend the deadline.
                    Message::Stopping if matches!(end, End::Stopped) => {}
                    Message::Stopping => {
                        (end, deadline) = (End::Stopped, Some(tokio::time::Instant::now() + STOP_TIMEOUT));
                    }
                    other => return Err(Error::corrupt(format!("{other:?} from a server"))),
                }
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
