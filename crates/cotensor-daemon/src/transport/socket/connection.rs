//! A connection on the Unix socket. Each has a thread of its own, which the kernel wakes directly and which no other
//! session delays.

use crate::Daemon;
use crate::descriptors::unread_max;
use crate::dispatch::{Client, Methods};
use crate::state::session::Session;
use cotensor_core::{Error, Result};
use cotensor_memory::process::peer_credentials;
use cotensor_rpc::is_batch;
use cotensor_rpc::server::{BatchPermits, Outbox, Reader};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// The most unanswered batches of one session. The next batch waits unread.
const BATCHES_MAX: usize = 4;
/// How long a session's thread busy-polls for the next call.
const BUSY_POLL: Duration = Duration::from_micros(40);
/// Handlers nest little. The kernel commits stack pages when they are used.
const STACK_BYTES: usize = 1 << 20;

/// Serves `stream` on a thread of its own. When the connection ends, so does the session, and `open` is dropped. The daemon keeps
/// the leases that the client may resume. Calls that wait do so on the current runtime.
///
/// # Errors
/// `Io` when the system has no more threads.
pub(crate) fn serve<T: Send + 'static>(
    daemon: Arc<Daemon>,
    methods: Arc<Methods>,
    stream: UnixStream,
    open: T,
) -> Result<()> {
    let runtime = Handle::current();
    let run = move || {
        let _entered = runtime.enter();
        serve_session(&daemon, &methods, stream, open);
    };
    let thread = std::thread::Builder::new().name("session".to_owned()).stack_size(STACK_BYTES);
    thread.spawn(run).map(drop).map_err(|error| Error::io("starting a thread", &error))
}

/// Ends the session when it is dropped, also by a panic of the thread.
struct OpenSession<'a, T> {
    daemon: &'a Daemon,
    session: Arc<Session>,
    open: Option<T>,
}

impl<T> Drop for OpenSession<'_, T> {
    fn drop(&mut self) {
        let left = self.daemon.end_session(&self.session);
        // The client's next connection may need the place.
        drop(self.open.take());
        if let Some(left) = left {
            // The client resumes its session after it has noticed the end, and this thread has the socket for longer.
            self.session.outbox().into_iter().for_each(Outbox::end);
            self.daemon.keep_left(left);
        }
    }
}

fn serve_session<T>(daemon: &Arc<Daemon>, methods: &Methods, stream: UnixStream, open: T) {
    let pid = match peer_credentials(stream.as_fd()) {
        Ok(peer) if peer.is_own_user() => peer.pid,
        // The socket's mode keeps other users out. This check is for a socket whose mode was changed.
        Ok(peer) => {
            if let Some(count) = daemon.refused_users.note() {
                tracing::warn!("{count} connections of other users were refused, the last one of user {}", peer.uid);
            }
            return;
        }
        Err(error) => return tracing::warn!("a connection was refused because its user is unknown: {error}"),
    };
    let stream = Arc::new(stream);
    let session = daemon.begin_session(pid, Some(Outbox::with_fds_max(Arc::clone(&stream), unread_max())));
    let open = OpenSession { daemon, session, open: Some(open) };
    if let Err(error) = read(daemon, methods, &open.session, &stream) {
        tracing::debug!(session = open.session.id, client = open.session.client(), "ended: {error}");
    }
}

/// Reads and answers messages until the connection ends. Then waiting calls are cancelled.
fn read(daemon: &Arc<Daemon>, methods: &Methods, session: &Arc<Session>, stream: &UnixStream) -> Result<()> {
    let (client, _cancel) = Client::on_socket(daemon, session);
    let batches = BatchPermits::new(BATCHES_MAX);
    let mut reader = Reader::new(Arc::clone(&daemon.frames), daemon.config.message_timeout, BUSY_POLL);
    reader.expect_message();
    // After a failure to send, received messages are not answered.
    while !client.has_failed() {
        session.send_free_ranges();
        let Some(frame) = reader.next(stream, true)? else { return Ok(()) };
        let mut permit = None;
        if is_batch(&frame.body) {
            // The wait may take as long as the calls of other batches.
            reader.release_budget();
            permit = Some(batches.acquire(stream)?);
        }
        methods.handle(&client, frame, permit);
    }
    Ok(())
}
