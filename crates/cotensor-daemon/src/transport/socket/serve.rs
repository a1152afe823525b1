//! Serving: accepting connections, keeping the socket in place, and stopping.

use super::connection;
use super::idle::IdleTimer;
use crate::daemon::Daemon;
use crate::descriptors::{are_for_takeover, none_left};
use crate::dispatch::Methods;
use crate::handlers;
use crate::log_throttle::LogThrottle;
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_rpc::server::Outbox;
use cotensor_rpc::{FRAME_BYTES_MAX, Frame, Id, Response, send_all, to_object};
use cotensor_supervisor::{Listening, SOCKET_CHECK_INTERVAL};
use std::future::Future;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

/// How long connections may take to end when the daemon stops.
const STOP_TIMEOUT: Duration = Duration::from_millis(200);
/// How long the model process may take to end, which is killed meanwhile.
const MODELS_STOP_TIMEOUT: Duration = Duration::from_millis(300);
/// A daemon that clients cannot find, and that has no client, ends after it has found another daemon at its socket this
/// many times in a row. A single check may find a daemon that is being refused.
const MISPLACED_CHECKS: u32 = 3;
/// The interval between two checks for tensors that were kept for their time.
const DUE_INTERVAL: Duration = Duration::from_secs(1);
/// The pause after a connection could not be accepted.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(50);

impl Daemon {
    /// Serves connections on `listening` until `stop` is done, then ends all sessions. Makes the socket and its lock
    /// again when their files are removed.
    ///
    /// # Errors
    /// `Io` when the socket fails; `Conflict` when another daemon has the socket and this one has no client.
    pub async fn serve(self: &Arc<Self>, listening: &mut Listening, stop: impl Future<Output = ()>) -> Result<()> {
        let mut listener = acceptor(listening)?;
        self.start_timers()?;
        let mut check = tokio::time::interval(SOCKET_CHECK_INTERVAL);
        check.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        // The last error of the check, which is logged once, and the number of checks in a row that found another
        // daemon.
        let (mut misplaced, mut conflicts) = (String::new(), 0);
        let mut outcome = Ok(());
        let mut due = tokio::time::interval(DUE_INTERVAL);
        due.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut idle = IdleTimer::new(self.config.idle_exit);
        // Each connection's thread holds a permit.
        let open = Arc::new(Semaphore::new(self.config.connections_max));
        let methods = Arc::new(handlers::methods());
        let (refused, not_accepted) = (LogThrottle::default(), LogThrottle::default());
        let mut stop = std::pin::pin!(stop);
        loop {
            tokio::select! {
                () = &mut stop => break,
                _ = check.tick() => if idle.is_over(self) {
                    tracing::info!("ending: no client and no tensor for {} s", idle.limit().as_secs());
                    break;
                } else { match listening.mend() {
                    Ok(false) => conflicts = 0,
                    Ok(true) => {
                        conflicts = 0;
                        tracing::warn!("{} or its lock was removed: made again", listening.path().display());
                        misplaced.clear();
                        listener = acceptor(listening)?;
                        if let Some(link) = &self.events.link {
                            match listening.descriptors() {
                                Ok(fds) => link.moved(listening.path(), fds),
                                Err(error) => tracing::error!("the next server does not get this socket: {error}"),
                            }
                        }
                    }
                    Err(error) => {
                        let message = error.to_string();
                        if message != misplaced {
                            tracing::error!("new clients cannot find this daemon: {message}");
                            misplaced = message;
                        }
                        // A file that is not a socket is a mistake of a user, and no reason to end.
                        let is_displaced = error.kind() == ErrorKind::Conflict && listening.is_displaced();
                        conflicts = if is_displaced { conflicts + 1 } else { 0 };
                        if conflicts >= MISPLACED_CHECKS && self.clients() == 0 {
                            outcome = Err(error);
                            break;
                        }
                    }
                }},
                _ = due.tick() => drop(self.store.free_due()),
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        if let Err(error) = self.accept(stream, &methods, &open)
                            && let Some(count) = refused.note()
                        {
                            tracing::warn!("{count} connections were refused: {error}");
                        }
                    }
                    Err(error) => {
                        // Usually too many open descriptors: some will be closed.
                        if let Some(count) = not_accepted.note() {
                            tracing::warn!("{count} connections were not accepted: {error}");
                        }
                        tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await;
                    }
                },
            }
        }
        match (&self.events.link, &self.files) {
            (Some(link), _) => link.stop(),
            (None, Some(files)) => files.remove(),
            (None, None) => {}
        }
        let sessions: Vec<_> = self.lock().values().cloned().collect();
        sessions.iter().filter_map(|session| session.outbox()).for_each(Outbox::end);
        let left = self.disconnected().stop();
        drop(left);
        self.stopping.send_replace(true);
        self.wake_timers();
        // A busy connection ends later.
        let all = u32::try_from(self.config.connections_max).unwrap_or(u32::MAX);
        let connections = tokio::time::timeout(STOP_TIMEOUT, open.acquire_many(all));
        drop(tokio::join!(connections, tokio::time::timeout(MODELS_STOP_TIMEOUT, self.models.stop())));
        for (_, session) in self.lock().drain() {
            let _ = session.end();
        }
        outcome
    }

    fn accept(self: &Arc<Self>, stream: UnixStream, methods: &Arc<Methods>, open: &Arc<Semaphore>) -> Result<()> {
        let io = |error: std::io::Error| Error::io("accepting", &error);
        let stream = stream.into_std().map_err(io)?;
        let max = self.config.connections_max;
        let full = |_| Error::new(ErrorKind::OverBudget, format!("the daemon has its limit of {max} connections"));
        let place = match Arc::clone(open).try_acquire_owned().map_err(full) {
            Ok(_) if are_for_takeover(&stream) => Err(none_left()),
            place => place,
        };
        let place = place.inspect_err(|why| refuse(&stream, why))?;
        stream.set_nonblocking(false).map_err(io)?;
        connection::serve(Arc::clone(self), Arc::clone(methods), stream, place)
    }
}

/// Tells a client why its connection is closed, before it sends a request. A new socket has room for that.
fn refuse(stream: &std::os::unix::net::UnixStream, why: &Error) {
    let refused = Response::new(Id::null(), Err(to_object(why))).to_bytes(FRAME_BYTES_MAX);
    if let Ok(body) = refused {
        let _ = send_all(stream.as_fd(), &Frame::new(body));
    }
}

fn acceptor(listening: &Listening) -> Result<UnixListener> {
    let io = |error: std::io::Error| Error::io("listening", &error).in_file(listening.path());
    UnixListener::from_std(listening.listener().try_clone().map_err(io)?).map_err(io)
}
