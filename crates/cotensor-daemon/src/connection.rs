//! One connection on the Unix socket: frames in, answers out, until either end has had enough.

use crate::Daemon;
use crate::dispatch::Reply;
use crate::outgoing::Outgoing;
use crate::session::Session;
use cotensor_client::wire::{Decoder, Frame, rpc};
use cotensor_core::{Error, ErrorKind, Result};
use std::future::Future;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Calls of one session that may wait at the same time, each for another session's work.
const WAITING_CALLS_MAX: usize = 1024;

/// Batches of one session that are answered at the same time; those that follow are not read before one is.
const BATCHES_MAX: usize = 4;

/// Serves `stream` until it ends; what its session held is given back then.
pub(crate) async fn serve(daemon: Arc<Daemon>, stream: UnixStream) {
    let credentials = stream.peer_cred();
    let pid = match &credentials {
        Ok(peer) if peer.uid() == rustix::process::geteuid().as_raw() => peer.pid(),
        // The socket's mode keeps others out; this is for a socket whose mode somebody changed.
        _ => return tracing::warn!("a connection of another user was refused"),
    };
    let stream = Arc::new(stream);
    let session = daemon.begin_session(pid, Some(Outgoing::new(Arc::clone(&stream))));
    let drained = async {
        match session.outgoing() {
            Some(outgoing) => outgoing.drain().await,
            None => Ok(()),
        }
    };
    let mut waiting = JoinSet::new();
    let outcome = tokio::select! {
        outcome = read(&daemon, &session, &stream, &mut waiting) => outcome,
        outcome = drained => outcome,
    };
    waiting.abort_all();
    if let Err(error) = outcome {
        tracing::debug!(session = session.id, client = session.client(), "ended: {error}");
    }
    daemon.end_session(&session);
}

async fn read(
    daemon: &Arc<Daemon>,
    session: &Arc<Session>,
    stream: &UnixStream,
    waiting: &mut JoinSet<()>,
) -> Result<()> {
    let slots = Arc::new(Semaphore::new(WAITING_CALLS_MAX));
    let batches = Arc::new(Semaphore::new(BATCHES_MAX));
    let mut decoder = Decoder::default();
    let mut greeted = false;
    let mut begun = None;
    loop {
        while let Some(frame) = decoder.take()? {
            (greeted, begun) = (true, None);
            // Batches take turns with other connections; many at a time would be many answers at a time.
            let batch = match rpc::is_batch(&frame.body) {
                true => Arc::clone(&batches).acquire_owned().await.ok(),
                false => None,
            };
            answer(daemon, session, (frame, batch), &slots, waiting)?;
        }
        while waiting.try_join_next().is_some() {}
        // Silence is allowed between frames only. A frame's time runs from its beginning, however often a byte of it comes.
        let midway = decoder.is_midway() || !greeted;
        let until = midway.then(|| *begun.get_or_insert_with(Instant::now) + daemon.config.patience);
        ready(stream, until).await?;
        match stream.try_io(Interest::READABLE, || decoder.fill(stream.as_fd())) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted) => {}
            Err(error) => return Err(Error::io("reading", &error)),
        }
    }
}

async fn ready(stream: &UnixStream, until: Option<Instant>) -> Result<()> {
    let late = || Error::new(ErrorKind::TimedOut, "the rest of a message did not come");
    let ready = match until {
        None => stream.readable().await,
        // What comes in time is no excuse for what does not.
        Some(until) if Instant::now() >= until => return Err(late()),
        Some(until) => tokio::time::timeout_at(until, stream.readable()).await.map_err(|_| late())?,
    };
    ready.map_err(|error| Error::io("reading", &error))
}

/// Answers at once what can be; what has to wait for others goes on beside the calls that follow.
fn answer(
    daemon: &Arc<Daemon>,
    session: &Arc<Session>,
    (frame, batch): (Frame, Option<OwnedSemaphorePermit>),
    slots: &Arc<Semaphore>,
    waiting: &mut JoinSet<()>,
) -> Result<()> {
    let (daemon, owner) = (Arc::clone(daemon), Arc::clone(session));
    let mut answering = Box::pin(async move { daemon.methods.answer(&owner, frame).await });
    match answering.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(reply) => send(session, reply),
        Poll::Pending => {
            let slot = Arc::clone(slots).try_acquire_owned().map_err(|_| {
                Error::new(ErrorKind::Conflict, format!("more than {WAITING_CALLS_MAX} calls of one session wait"))
            })?;
            let session = Arc::clone(session);
            waiting.spawn(async move {
                let reply = answering.await;
                drop((slot, batch));
                if let Err(error) = send(&session, reply) {
                    tracing::debug!(session = session.id, "an answer was not sent: {error}");
                }
            });
            Ok(())
        }
    }
}

fn send(session: &Session, reply: Option<Reply<Vec<u8>>>) -> Result<()> {
    match (reply, session.outgoing()) {
        (Some(Reply { value, fds }), Some(outgoing)) => outgoing.send(Frame { body: value, fds }),
        _ => Ok(()),
    }
}
