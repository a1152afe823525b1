//! What supervisor and server say to each other on their socket pair, with descriptors.

use super::journal::{BLOCK, Event, Journal};
use crate::socket::Listening;
use cotensor_core::{Error, Result};
use cotensor_rpc::{Decoder, Frame, send_all, send_all_while};
use serde::{Deserialize, Serialize};
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long the other end may leave something unread before it counts as gone.
pub(super) const CHANNEL_TIMEOUT: Duration = Duration::from_secs(5);

/// One message.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Message {
    /// First of a handover. Descriptors: those of [`Sockets`], and the index if there is one.
    Begin(HandoverHeader),
    /// A part of the journal, or what happened to it since.
    Event(Event),
    /// Many entries of a journal, packed; not as JSON.
    #[serde(skip)]
    Block(Vec<u8>),
    /// Last of a handover; and what a successor answers to it.
    Complete,
    /// Clients are served from now on.
    Ready {
        /// The server's.
        epoch: u64,
    },
    /// The server listens on another socket, or has another lock, because the former one's file was removed. Descriptors: those
    /// of [`Listening`].
    Moved,
    /// The server ends because it was asked to.
    Stopping,
}

/// What a server or a supervisor starts with, beside the journal.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct HandoverHeader {
    /// Where the socket is.
    pub(super) socket: PathBuf,
    /// What sessions' tokens are made with.
    pub(super) secret: [u8; 32],
    /// How many servers there were before.
    pub(super) servers: u64,
    /// The server that is handed over to a supervisor.
    pub(super) server: Option<u32>,
    /// Slots of the index, when there is one.
    pub(super) index_slots: u32,
    /// Whether there is a socket for HTTP.
    pub(super) http: bool,
    /// Whether the supervisor that was started by hand, or by the system, is dead.
    pub(super) orphaned: bool,
}

/// What a daemon listens on.
pub(super) struct Sockets {
    pub(super) listening: Listening,
    pub(super) http: Option<TcpListener>,
}

impl Sockets {
    /// Copies for another process: those of [`Listening`], and the socket for HTTP if there is one.
    ///
    /// # Errors
    /// `Io` when no more descriptors may be open.
    pub(super) fn descriptors(&self) -> Result<Vec<OwnedFd>> {
        let mut fds = Vec::from(self.listening.descriptors()?);
        let http = self.http.as_ref().map(TcpListener::try_clone).transpose();
        fds.extend(http.map_err(|error| Error::io("duplicating a descriptor", &error))?.map(OwnedFd::from));
        Ok(fds)
    }

    /// From what [`descriptors`](Self::descriptors) gave.
    ///
    /// # Errors
    /// `Corrupt` when one is missing.
    pub(super) fn from_descriptors(header: &HandoverHeader, fds: &mut impl Iterator<Item = OwnedFd>) -> Result<Self> {
        let listening = listening_from(&header.socket, fds)?;
        let http = header.http.then(|| next_fd(fds)).transpose()?.map(TcpListener::from);
        Ok(Self { listening, http })
    }
}

fn next_fd(fds: &mut impl Iterator<Item = OwnedFd>) -> Result<OwnedFd> {
    fds.next().ok_or_else(|| Error::corrupt("a descriptor is missing"))
}

/// The Unix socket, from what [`Listening::descriptors`] gave.
///
/// # Errors
/// `Corrupt` when one is missing.
pub(super) fn listening_from(socket: &Path, fds: &mut impl Iterator<Item = OwnedFd>) -> Result<Listening> {
    let (listener, lock, file) = (next_fd(fds)?, next_fd(fds)?, next_fd(fds)?);
    Ok(Listening::from_parts(listener.into(), socket.to_path_buf(), lock, Some(file)))
}

/// One end of the pair, for receiving.
pub(super) struct Receiver {
    pub(super) socket: UnixStream,
    decoder: Decoder,
}

impl Receiver {
    pub(super) fn new(socket: UnixStream) -> Self {
        Self { socket, decoder: Decoder::default() }
    }

    /// What came already, if it is a whole message.
    ///
    /// # Errors
    /// `Corrupt` for anything that the other end does not say.
    pub(super) fn take(&mut self) -> Result<Option<(Message, Vec<OwnedFd>)>> {
        let Some(frame) = self.decoder.take()? else { return Ok(None) };
        if frame.body.first() == Some(&BLOCK) {
            return Ok(Some((Message::Block(frame.body), frame.fds)));
        }
        let message = serde_json::from_slice(&frame.body);
        Ok(Some((
            message.map_err(|error| Error::corrupt(format!("between supervisor and server: {error}")))?,
            frame.fds,
        )))
    }

    /// Reads once; zero bytes are the end.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn fill(&mut self) -> std::io::Result<usize> {
        self.decoder.fill(self.socket.as_fd())
    }

    /// Waits for the next message.
    ///
    /// # Errors
    /// `Io` at the end or past the socket's patience.
    pub(super) fn next(&mut self) -> Result<(Message, Vec<OwnedFd>)> {
        loop {
            if let Some(message) = self.take()? {
                return Ok(message);
            }
            match self.fill() {
                Ok(0) => return Err(Error::new(cotensor_core::ErrorKind::Io, "the handover ended midway")),
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io("taking over", &error)),
            }
        }
    }

    /// Takes a handover.
    ///
    /// # Errors
    /// `Io`, and `Corrupt` for what is no handover.
    pub(super) fn take_over(&mut self) -> Result<Handover> {
        let timeout = |time| self.socket.set_read_timeout(time).map_err(|error| Error::io("taking over", &error));
        timeout(Some(CHANNEL_TIMEOUT))?;
        let (Message::Begin(header), fds) = self.next()? else { return Err(Error::corrupt("no handover")) };
        let mut fds = fds.into_iter();
        let sockets = Sockets::from_descriptors(&header, &mut fds)?;
        let index = match header.index_slots {
            0 => None,
            _ => Some(fds.next().ok_or_else(|| Error::corrupt("the index is missing"))?),
        };
        let mut journal = Journal::default();
        loop {
            match self.next()? {
                (Message::Event(change), fds) => drop(journal.apply(change, fds)?),
                (Message::Block(block), fds) => journal.apply_block(&block, fds)?,
                (Message::Complete, _) => break,
                (message, _) => return Err(Error::corrupt(format!("{message:?} in a handover"))),
            }
        }
        let timeout = |time| self.socket.set_read_timeout(time).map_err(|error| Error::io("taking over", &error));
        timeout(None)?;
        Ok(Handover { header, sockets, index, journal })
    }
}

/// All that goes from one to the next.
pub(super) struct Handover {
    pub(super) header: HandoverHeader,
    pub(super) sockets: Sockets,
    pub(super) index: Option<OwnedFd>,
    pub(super) journal: Journal,
}

/// Says something.
///
/// # Errors
/// `Io` when the other end is gone or does not read.
pub(super) fn send(socket: &UnixStream, message: &Message, fds: Vec<OwnedFd>) -> Result<()> {
    send_while(socket, message, fds, || false)
}

/// As [`send`]; whenever the other end reads nothing for as long as the socket's timeout, `wanted` says whether to go on.
///
/// # Errors
/// As [`send`].
pub(super) fn send_while(
    socket: &UnixStream,
    message: &Message,
    fds: Vec<OwnedFd>,
    wanted: impl FnMut() -> bool,
) -> Result<()> {
    let body = serde_json::to_vec(message).map_err(|error| Error::invalid(error.to_string()))?;
    send_all_while(socket.as_fd(), &Frame { body, fds }, wanted)
}

/// Hands everything over.
///
/// # Errors
/// As [`send`].
pub(super) fn hand_over(
    socket: &UnixStream,
    header: HandoverHeader,
    sockets: &Sockets,
    index: Option<OwnedFd>,
    journal: &Journal,
) -> Result<()> {
    socket.set_write_timeout(Some(CHANNEL_TIMEOUT)).map_err(|error| Error::io("handing over", &error))?;
    let mut fds = sockets.descriptors()?;
    fds.extend(index);
    send(socket, &Message::Begin(HandoverHeader { http: sockets.http.is_some(), ..header }), fds)?;
    let block = |body, fds| send_all(socket.as_fd(), &Frame { body, fds });
    journal.hand_over(block, |change| send(socket, &Message::Event(change), Vec::new()))?;
    send(socket, &Message::Complete, Vec::new())
}
