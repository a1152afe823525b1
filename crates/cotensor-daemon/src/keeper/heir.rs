//! A daemon whose keeper was killed goes on with another, which nobody has started by hand. Whoever starts the program on
//! the same socket then inherits everything, through a socket beside the daemon's.

use super::channel::{Message, PATIENCE, Receiver, Sockets, say};
use super::estate::Estate;
use crate::socket::Bound;
use cotensor_core::{Error, Result};
use cotensor_memory::process::peer_credentials;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Where an heir asks.
fn beside(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".heir");
    path.into()
}

fn is_own(stream: &UnixStream) -> bool {
    peer_credentials(stream.as_fd()).is_ok_and(|peer| peer.is_own_user())
}

/// Waits for an heir. The socket goes with this.
pub(super) struct Heirs(Bound);

impl Heirs {
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
        let io = |error: std::io::Error| Error::io("waiting for an heir", &error).in_file(self.0.path());
        let copy = self.0.listener().try_clone().map_err(io)?;
        tokio::net::UnixListener::from_std(copy).map_err(io)
    }
}

impl Drop for Heirs {
    fn drop(&mut self) {
        self.0.remove();
    }
}

/// An heir who asked, if it is this user's.
pub(super) fn admitted(stream: tokio::net::UnixStream) -> Option<UnixStream> {
    let stream = stream.into_std().ok().filter(is_own)?;
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    Some(stream)
}

/// Whether the heir says that it has everything.
pub(super) fn has_taken(heir: UnixStream) -> bool {
    matches!(Receiver::new(heir).next(), Ok((Message::Complete, _)))
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
) -> Result<Option<(Estate, P)>> {
    let Ok(stream) = UnixStream::connect(beside(socket)) else { return Ok(None) };
    if !is_own(&stream) {
        return Ok(None);
    }
    let mut receiver = Receiver::new(stream);
    let mut handover = receiver.take_over()?;
    // Before it is said that all is well: nobody has it any more when this process then fails.
    let prepared = prepare(&mut handover.sockets)?;
    say(&receiver.socket, &Message::Complete, Vec::new())?;
    let mut estate = Estate::of(handover);
    estate.birth.orphaned = false;
    tracing::info!("took {} tensors over from a daemon that nobody answered for", estate.tensors());
    Ok(Some((estate, prepared)))
}
