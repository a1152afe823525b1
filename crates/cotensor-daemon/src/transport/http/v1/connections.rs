//! Connections to the model process, which are used again.

use crate::models::ModelProcess;
use cotensor_client::ShortPath;
use cotensor_core::sync::lock;
use cotensor_memory::process::peer_credentials;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;
use tokio::net::UnixStream;

/// The open connections. Each has one request at a time.
#[derive(Default)]
pub(super) struct Connections(Mutex<Vec<Connection>>);

struct Connection {
    sender: SendRequest<Full<Bytes>>,
    /// A duplicate of its socket.
    socket: OwnedFd,
}

impl Connection {
    /// Whether its last answer was read completely and the process has not closed it. The task of the connection may not have
    /// seen that yet.
    fn is_ready(&self) -> bool {
        let mut events = [PollFd::new(&self.socket, PollFlags::IN)];
        self.sender.is_ready() && poll(&mut events, Some(&Timespec::default())) == Ok(0)
    }
}

impl Connections {
    /// Sends a request to the model process, and waits for the beginning of its answer. When the returned
    /// future or the answer is dropped, the connection ends.
    ///
    /// # Errors
    /// The reason why there is no answer, after the process has ended.
    pub(super) async fn send(
        &self,
        process: &ModelProcess,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, String> {
        let mut request = request;
        while let Some(mut connection) = self.idle() {
            match connection.sender.try_send_request(request).await {
                Ok(response) => return Ok(self.answered(connection, response)),
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(error.error().to_string()),
                },
            }
        }
        let connected = async {
            let stream = UnixStream::connect(ShortPath::of(&process.path)?).await?;
            let peer = peer_credentials(stream.as_fd())?;
            if !peer.is_own_user() || peer.pid.is_none_or(|pid| pid.unsigned_abs() != process.pid) {
                return Err(std::io::Error::other("another process listens at its socket"));
            }
            let socket = stream.as_fd().try_clone_to_owned()?;
            Ok::<_, std::io::Error>((stream, socket))
        };
        let (stream, socket) = match connected.await {
            Ok(connected) => connected,
            Err(error) => return Err(error.to_string()),
        };
        let (mut sender, connection) = match handshake(TokioIo::new(stream)).await {
            Ok(connected) => connected,
            Err(error) => return Err(error.to_string()),
        };
        // Ends when the sender is dropped, or the process closes the connection.
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!("a connection to the model process ended: {error}");
            }
        });
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        Ok(self.answered(Connection { sender, socket }, response))
    }

    /// A connection without a request.
    fn idle(&self) -> Option<Connection> {
        let mut open = lock(&self.0);
        open.retain(|connection| !connection.sender.is_closed());
        let ready = open.iter().position(Connection::is_ready)?;
        Some(open.swap_remove(ready))
    }

    /// Keeps a connection for the requests after this answer.
    fn answered(&self, connection: Connection, response: Response<Incoming>) -> Response<Incoming> {
        lock(&self.0).push(connection);
        response
    }
}
