//! The takeover of a daemon whose first supervisor was killed. A program that is started on the same socket becomes the
//! successor of the replacement supervisor, through a socket beside the daemon's.

use crate::channel::{CHANNEL_TIMEOUT, Handover, Message, Receiver, Sockets, send};
use crate::listening::Bound;
use cotensor_client::{connect_unix, path_beside};
use cotensor_core::{Error, Result};
use cotensor_memory::process::peer_credentials;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// The path of the socket for successors.
fn beside(socket: &Path) -> PathBuf {
    path_beside(socket, ".successor")
}

fn is_own(stream: &UnixStream) -> bool {
    peer_credentials(stream.as_fd()).is_ok_and(|peer| peer.is_own_user())
}

/// The socket for successors. Dropping it removes its file.
pub(crate) struct SuccessorSocket(Bound);

impl SuccessorSocket {
    /// # Errors
    /// `Io` when the system refuses.
    pub(crate) fn wait(socket: &Path) -> Result<Self> {
        Bound::bind(&beside(socket)).map(Self)
    }

    /// Listens again if the socket's file was removed. Returns whether it was.
    ///
    /// # Errors
    /// `Io` while its folder does not exist.
    pub(crate) fn mend(&mut self) -> Result<bool> {
        let removed = !self.0.is_in_place();
        if removed {
            self.0 = Bound::bind(self.0.path())?;
        }
        Ok(removed)
    }

    /// # Errors
    /// `Io` when the system refuses.
    pub(crate) fn listener(&self) -> Result<tokio::net::UnixListener> {
        let io = |error: std::io::Error| Error::io("waiting for a successor", &error).in_file(self.0.path());
        let copy = self.0.listener().try_clone().map_err(io)?;
        tokio::net::UnixListener::from_std(copy).map_err(io)
    }
}

impl Drop for SuccessorSocket {
    fn drop(&mut self) {
        self.0.remove();
    }
}

/// The connection of a successor, if it belongs to this user.
pub(crate) fn admitted(stream: tokio::net::UnixStream) -> Option<UnixStream> {
    let stream = stream.into_std().ok().filter(is_own)?;
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(CHANNEL_TIMEOUT)).ok()?;
    Some(stream)
}

/// Whether the successor confirms that it has the state.
pub(crate) fn confirms(successor: UnixStream) -> bool {
    matches!(Receiver::new(successor).next(), Ok((Message::Complete, _)))
}

/// Takes over the state of the daemon at `socket` if its first supervisor was killed, after `prepare` has succeeded.
/// Its server is dead afterwards.
///
/// # Errors
/// `Io` and `Corrupt` for a handover that failed, and those of `prepare`. The other supervisor then starts another
/// server.
pub(crate) fn inherit<P>(
    socket: &Path,
    prepare: impl FnOnce(&mut Sockets) -> Result<P>,
) -> Result<Option<(Handover, P)>> {
    let Ok(stream) = connect_unix(&beside(socket)) else { return Ok(None) };
    if !is_own(&stream) {
        return Ok(None);
    }
    let mut receiver = Receiver::new(stream);
    let mut handover = receiver.take_over()?;
    // Before the confirmation: after it, a failure of this process would lose the state.
    let prepared = prepare(&mut handover.sockets)?;
    send(&receiver.socket, &Message::Complete, &[])?;
    handover.header.orphaned = false;
    tracing::info!("took {} tensors over from a daemon whose supervisor was killed", handover.journal.len());
    Ok(Some((handover, prepared)))
}
