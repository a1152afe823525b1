//! A daemon whose supervisor was killed goes on with another, which nobody has started by hand. Whoever starts the program on
//! the same socket then inherits everything, through a socket beside the daemon's.

use super::channel::{CHANNEL_TIMEOUT, Handover, Message, Receiver, Sockets, send};
use crate::socket::Bound;
use cotensor_core::{Error, Result};
use cotensor_memory::process::peer_credentials;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Where a successor asks.
fn beside(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".successor");
    path.into()
}

fn is_own(stream: &UnixStream) -> bool {
    peer_credentials(stream.as_fd()).is_ok_and(|peer| peer.is_own_user())
}

/// Waits for a successor. The socket goes with this.
pub(super) struct SuccessorSocket(Bound);

impl SuccessorSocket {
    /// # Errors
    /// `Io` when the system refuses.
    pub(super) fn wait(socket: &Path) -> Result<Self> {
        Bound::bind(&beside(socket)).map(Self)
    }

    /// Listens anew if the socket's file was removed; whether it was.
    ///
    /// # Errors
    /// `Io`, as long as there is no folder for it.
    pub(super) fn mend(&mut self) -> Result<bool> {
        let removed = !self.0.is_in_place();
        if removed {
            self.0 = Bound::bind(self.0.path())?;
        }
        Ok(removed)
    }

    /// # Errors
    /// `Io` when the system refuses.
    pub(super) fn listener(&self) -> Result<tokio::net::UnixListener> {
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

/// A successor who asked, if it is this user's.
pub(super) fn admitted(stream: tokio::net::UnixStream) -> Option<UnixStream> {
    let stream = stream.into_std().ok().filter(is_own)?;
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(CHANNEL_TIMEOUT)).ok()?;
    Some(stream)
}

/// Whether the successor says that it has everything.
pub(super) fn has_taken(successor: UnixStream) -> bool {
    matches!(Receiver::new(successor).next(), Ok((Message::Complete, _)))
}

/// What the daemon at `socket` has, if nobody answers for it any more, once `prepare` says that this process can go on with
/// it. Its server is dead afterwards.
///
/// # Errors
/// `Io` and `Corrupt` for a handover that failed, and those of `prepare`: the one who has it then goes on, with another
/// server.
pub(super) fn inherit<P>(
    socket: &Path,
    prepare: impl FnOnce(&mut Sockets) -> Result<P>,
) -> Result<Option<(Handover, P)>> {
    let Ok(stream) = UnixStream::connect(beside(socket)) else { return Ok(None) };
    if !is_own(&stream) {
        return Ok(None);
    }
    let mut receiver = Receiver::new(stream);
    let mut handover = receiver.take_over()?;
    // Before it is said that all is well: nobody has it any more when this process then fails.
    let prepared = prepare(&mut handover.sockets)?;
    send(&receiver.socket, &Message::Complete, Vec::new())?;
    handover.header.orphaned = false;
    tracing::info!("took {} tensors over from a daemon whose supervisor was killed", handover.journal.len());
    Ok(Some((handover, prepared)))
}
