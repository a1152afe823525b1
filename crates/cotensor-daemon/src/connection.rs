//! One connection on the Unix socket: frames in, answers out, until either end has had enough. Each has a thread of its
//! own, which the kernel wakes as directly as any, and which what another session asks for cannot keep waiting.

use crate::Daemon;
use crate::dispatch::Reply;
use crate::session::Session;
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_memory::process::peer_credentials;
use cotensor_rpc::{self as rpc, Decoder, Frame, Outbox, Spin};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use std::future::Future;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

/// Calls of one session that may wait at the same time, each for another session's work.
const WAITING_CALLS_MAX: usize = 1024;
/// Batches of one session that are answered at the same time; those that follow are not read before one is.
const BATCHES_MAX: usize = 4;
/// How long a session's thread looks for the next call before it sleeps: many come in a row. One whose calls come more rarely
/// sleeps at once.
const SPIN: Duration = Duration::from_micros(40);
/// Between two looks whether a client that has to wait is still there.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// What answers nests little; the system gives it page by page.
const STACK_BYTES: usize = 1 << 20;

/// Serves `stream` until it ends, on a thread of its own; what its session held is given back then, and `open` dropped.
/// What has to wait does so on the runtime that this is called on.
///
/// # Errors
/// `Io` when the system has no more threads.
pub(crate) fn serve<T: Send + 'static>(daemon: Arc<Daemon>, stream: UnixStream, open: T) -> Result<()> {
    let runtime = Handle::current();
    let run = move || {
        let _entered = runtime.enter();
        let _open = open;
        converse(&daemon, stream);
    };
    let thread = std::thread::Builder::new().name("session".to_owned()).stack_size(STACK_BYTES);
    thread.spawn(run).map(drop).map_err(|error| Error::io("starting a thread", &error))
}

/// Ends a session however its thread does.
struct Open(Arc<Session>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.daemon.end_session(&self.0);
    }
}

fn converse(daemon: &Arc<Daemon>, stream: UnixStream) {
    let pid = match peer_credentials(stream.as_fd()) {
        Ok(peer) if peer.is_own_user() => peer.pid,
        // The socket's mode keeps others out. This check is for a socket whose mode was changed.
        Ok(peer) => {
            if let Some(count) = daemon.strangers.note() {
                tracing::warn!("{count} connections of other users were refused, the last of user {}", peer.uid);
            }
            return;
        }
        Err(error) => return tracing::warn!("a connection was refused: its user is not known: {error}"),
    };
    let stream = Arc::new(stream);
    let session = Open(daemon.begin_session(pid, Some(Outbox::new(Arc::clone(&stream)))));
    let mut reader = Reader { session: &session.0, stream: &stream, waiting: JoinSet::new() };
    if let Err(error) = reader.read() {
        tracing::debug!(session = session.0.id, client = session.0.client(), "ended: {error}");
    }
}

struct Reader<'a> {
    session: &'a Arc<Session>,
    stream: &'a UnixStream,
    /// Calls that wait; they end with this.
    waiting: JoinSet<()>,
}

impl Reader<'_> {
    fn read(&mut self) -> Result<()> {
        let slots = Arc::new(Semaphore::new(WAITING_CALLS_MAX));
        let batches = Arc::new(Semaphore::new(BATCHES_MAX));
        let mut decoder = Decoder::sharing(Arc::clone(&self.session.daemon.frames));
        let mut spin = Spin::new(SPIN);
        let mut greeted = false;
        // When what has begun has to have ended, however often a byte of it comes; silence is allowed between frames only.
        let mut due: Option<Instant> = None;
        loop {
            while let Some(frame) = decoder.take()? {
                greeted = true;
                if due.take().is_some() {
                    self.limit(None)?;
                }
                // Many at a time would be many answers at a time.
                let batch = if rpc::is_batch(&frame.body) {
                    // May take as long as the calls of other batches do.
                    decoder.release();
                    Some(self.turn(&batches)?)
                } else {
                    None
                };
                self.answer((frame, batch), &slots)?;
            }
            while self.waiting.try_join_next().is_some() {}
            if decoder.is_midway() || !greeted {
                let patience = self.session.daemon.config.patience;
                self.limit(Some(*due.get_or_insert_with(|| Instant::now() + patience)))?;
            }
            self.session.tell_freed();
            let stream = self.stream.as_fd();
            let found = spin.until_found(|| match decoder.fill_now(stream) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => None,
                found => Some(found),
            });
            match found.unwrap_or_else(|| decoder.fill(stream)) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                // The time is up, which the next turn sees.
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io("reading", &error)),
            }
        }
    }

    /// Waits for one of the batches to end, or for the client's end.
    fn turn(&self, batches: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit> {
        loop {
            let turn = tokio::time::timeout(LOOK_AGAIN, Arc::clone(batches).acquire_owned());
            if let Ok(Ok(turn)) = Handle::current().block_on(turn) {
                return Ok(turn);
            }
            let mut end = [PollFd::new(self.stream, PollFlags::RDHUP)];
            let polled = poll(&mut end, Some(&Timespec::default()));
            if polled.is_ok_and(|count| count > 0) {
                return Err(Error::new(ErrorKind::Io, "the client is gone"));
            }
        }
    }

    /// Lets reads wait until `due` and no longer.
    fn limit(&self, due: Option<Instant>) -> Result<()> {
        let left = due.map(|due| due.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(Error::new(ErrorKind::TimedOut, "the rest of a message did not come"));
        }
        self.stream.set_read_timeout(left).map_err(|error| Error::io("reading", &error))
    }

    /// Answers at once what can be; what has to wait for others goes on beside the calls that follow.
    fn answer(&mut self, (frame, batch): (Frame, Option<OwnedSemaphorePermit>), slots: &Arc<Semaphore>) -> Result<()> {
        let (daemon, owner) = (Arc::clone(&self.session.daemon), Arc::clone(self.session));
        let mut answering = Box::pin(async move { daemon.methods.answer(&owner, frame).await });
        match answering.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(reply) => send(self.session, reply),
            Poll::Pending => {
                let slot = Arc::clone(slots).try_acquire_owned().map_err(|_| {
                    Error::new(ErrorKind::Conflict, format!("more than {WAITING_CALLS_MAX} calls of one session wait"))
                })?;
                let session = Arc::clone(self.session);
                self.waiting.spawn(async move {
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
}

fn send(session: &Session, reply: Option<Reply<Vec<u8>>>) -> Result<()> {
    match (reply, session.outbox()) {
        (Some(Reply { value, fds }), Some(outbox)) => outbox.send(Frame { body: value, fds }),
        _ => Ok(()),
    }
}
