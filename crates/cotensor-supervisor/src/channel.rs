//! Messages between supervisor and server on their socket pair, with descriptors.

use crate::journal::{BLOCK_VERSION, Event, Journal};
use crate::listening::Listening;
use cotensor_core::{Error, Result};
use cotensor_memory::process::{LockTable, duplicate_fds};
use cotensor_rpc::{Decoder, Frame, send_all, send_all_while};
use serde::{Deserialize, Serialize};
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The connection counts as dead when the other end reads nothing for this long.
pub(crate) const CHANNEL_TIMEOUT: Duration = Duration::from_secs(5);

/// One message.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Message {
    /// Begins a handover. Descriptors: those of [`Sockets`], and the index if there is one.
    Begin(HandoverHeader),
    /// A part of the journal, or an event after the handover.
    Event(Event),
    /// Many entries of the journal in packed form, which is not JSON.
    #[serde(skip)]
    Block(Vec<u8>),
    /// Ends a handover. A successor answers with the same message.
    Complete,
    /// The server serves clients now.
    Ready {
        /// The server's epoch.
        epoch: u64,
    },
    /// The server has made its socket or its lock again because the file was removed. Descriptors: those of
    /// [`Listening`].
    Moved,
    /// The server serves HTTP because a client asked for it. Descriptor: the listening socket.
    HttpStarted,
    /// The server stops on request.
    Stopping,
}

/// The part of a handover that is not in the journal.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct HandoverHeader {
    /// The path of the socket.
    pub(crate) socket: PathBuf,
    /// The secret from which session tokens are derived.
    pub(crate) secret: [u8; 32],
    /// The number of servers before this one.
    pub(crate) servers: u64,
    /// The process of the server that hands over to a new supervisor.
    pub(crate) server: Option<u32>,
    /// The number of slots of the index; 0 without an index.
    pub(crate) index_slots: u32,
    /// Whether the descriptors contain a socket for HTTP.
    pub(crate) http: bool,
    /// Whether the supervisor that a user or the system started is dead.
    pub(crate) orphaned: bool,
}

/// The listening sockets of a daemon, and the locks of its sessions.
pub struct Sockets {
    /// The Unix socket.
    pub listening: Listening,
    /// A lock for each session whose client keeps it.
    pub locks: LockTable,
    /// The socket for HTTP, if the daemon serves HTTP.
    pub http: Option<TcpListener>,
}

impl Sockets {
    /// For another process: those of [`Listening`], the locks, and the socket for HTTP if there is one.
    ///
    /// # Errors
    /// `Io` when the socket has no file.
    pub(crate) fn descriptors(&self) -> Result<Vec<BorrowedFd<'_>>> {
        let mut fds = Vec::from(self.listening.descriptors()?);
        fds.push(self.locks.as_fd());
        fds.extend(self.http.as_ref().map(TcpListener::as_fd));
        Ok(fds)
    }

    /// Duplicates in this process.
    ///
    /// # Errors
    /// `Io` when no more descriptors may be open, and when the socket has no file.
    pub(crate) fn duplicate(&self, header: &HandoverHeader) -> Result<Self> {
        Self::from_descriptors(header, &mut duplicate_fds(self.descriptors()?)?.into_iter())
    }

    /// The sockets that another process sent as [`descriptors`](Self::descriptors).
    ///
    /// # Errors
    /// `Corrupt` when one is missing.
    pub(crate) fn from_descriptors(header: &HandoverHeader, fds: &mut impl Iterator<Item = OwnedFd>) -> Result<Self> {
        let listening = listening_from(&header.socket, fds)?;
        let locks = LockTable::open(next_fd(fds)?);
        let http = header.http.then(|| next_fd(fds)).transpose()?.map(TcpListener::from);
        Ok(Self { listening, locks, http })
    }
}

fn next_fd(fds: &mut impl Iterator<Item = OwnedFd>) -> Result<OwnedFd> {
    fds.next().ok_or_else(|| Error::corrupt("a descriptor is missing"))
}

/// The Unix socket from [`Listening::descriptors`] of another process, or from duplicates of them.
///
/// # Errors
/// `Corrupt` when one is missing.
pub(crate) fn listening_from(socket: &Path, fds: &mut impl Iterator<Item = OwnedFd>) -> Result<Listening> {
    let (listener, lock, file) = (next_fd(fds)?, next_fd(fds)?, next_fd(fds)?);
    Ok(Listening::from_parts(listener.into(), socket.to_path_buf(), lock, Some(file)))
}

/// The receiving side of one end of the pair.
pub(crate) struct Receiver {
    pub(crate) socket: UnixStream,
    decoder: Decoder,
}

impl Receiver {
    pub(crate) fn new(socket: UnixStream) -> Self {
        Self { socket, decoder: Decoder::default() }
    }

    /// The next message that has been received completely.
    ///
    /// # Errors
    /// `Corrupt` for bytes that are not a message.
    pub(crate) fn take(&mut self) -> Result<Option<(Message, Vec<OwnedFd>)>> {
        let Some(frame) = self.decoder.take()? else { return Ok(None) };
        if frame.body.first() == Some(&BLOCK_VERSION) {
            return Ok(Some((Message::Block(frame.body), frame.fds)));
        }
        let message = serde_json::from_slice(&frame.body);
        Ok(Some((
            message.map_err(|error| Error::corrupt(format!("between supervisor and server: {error}")))?,
            frame.fds,
        )))
    }

    /// Reads once. Returns 0 at the end of the connection.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn fill(&mut self) -> std::io::Result<usize> {
        self.decoder.fill(self.socket.as_fd())
    }

    /// Waits for the next message.
    ///
    /// # Errors
    /// `Io` at the end of the connection, or after the socket's timeout.
    pub(crate) fn next(&mut self) -> Result<(Message, Vec<OwnedFd>)> {
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

    /// Receives a handover.
    ///
    /// # Errors
    /// `Io`; `Corrupt` for messages that are not a handover.
    pub(crate) fn take_over(&mut self) -> Result<Handover> {
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

/// The state that one process hands to the next.
pub(crate) struct Handover {
    pub(crate) header: HandoverHeader,
    pub(crate) sockets: Sockets,
    pub(crate) index: Option<OwnedFd>,
    pub(crate) journal: Journal,
}

/// Sends a message.
///
/// # Errors
/// `Io` when the other end has closed the connection or does not read.
pub(crate) fn send(socket: &UnixStream, message: &Message, fds: &[BorrowedFd<'_>]) -> Result<()> {
    send_while(socket, message, fds, || false)
}

/// As [`send`]. Each time the socket's timeout passes and the other end has read nothing, `wanted` decides whether to
/// wait on.
///
/// # Errors
/// As [`send`].
pub(crate) fn send_while(
    socket: &UnixStream,
    message: &Message,
    fds: &[BorrowedFd<'_>],
    wanted: impl FnMut() -> bool,
) -> Result<()> {
    let body = serde_json::to_vec(message).map_err(|error| Error::invalid(error.to_string()))?;
    send_all_while(socket.as_fd(), &Frame { body, fds: fds.to_vec() }, wanted)
}

/// Sends a handover.
///
/// # Errors
/// As [`send`].
pub(crate) fn hand_over(
    socket: &UnixStream,
    header: HandoverHeader,
    sockets: &Sockets,
    index: Option<BorrowedFd<'_>>,
    journal: &Journal,
) -> Result<()> {
    socket.set_write_timeout(Some(CHANNEL_TIMEOUT)).map_err(|error| Error::io("handing over", &error))?;
    let mut fds = sockets.descriptors()?;
    fds.extend(index);
    send(socket, &Message::Begin(HandoverHeader { http: sockets.http.is_some(), ..header }), &fds)?;
    let block = |body, fds| send_all(socket.as_fd(), &Frame { body, fds });
    journal.hand_over(block, |change| send(socket, &Message::Event(change), &[]))?;
    send(socket, &Message::Complete, &[])
}
