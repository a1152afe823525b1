//! systemd as service manager: notifications, and its file descriptor store, which keeps the state when all processes
//! of the daemon die at once.
//!
//! The store holds named descriptors: the sockets, the locks of sessions, each segment, and a memfd with the journal. Events are appended to
//! the journal, which is rewritten when it has grown too long.

use super::channel::{HandoverHeader, Sockets};
use crate::listening::Listening;
use crate::state::journal::{Event, Journal};
use cotensor_core::{Error, Result};
use cotensor_memory::process::{LockTable, create_memfd, listen_fds_with_names};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::sockopt::socket_domain;
use rustix::net::{AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::cell::Cell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{IoSlice, Read, Seek, SeekFrom, Write};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::time::Duration;

/// How long the manager may read nothing. Less than servers wait for their supervisor.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(1);
const LISTENER: &str = "listener";
const LOCK: &str = "lock";
const HTTP: &str = "http";
const SESSIONS: &str = "sessions";
/// The sockets on which systemd itself listened until the first client came (`FileDescriptorName=` of dist/cotensor.socket): that
/// of the daemon, and one for HTTP if the unit has it.
const ACTIVATED: &str = "activated";
const JOURNAL: &str = "journal-";
const SEGMENT: &str = "segment-";
/// A journal is rewritten when it is longer than twice its last rewritten length and this many bytes.
const GROWTH_BYTES: u64 = 1 << 20;
/// The most bytes of a journal that are read back.
const JOURNAL_BYTES_MAX: u64 = 1 << 30;

/// The manager that started this process.
pub(crate) struct Manager {
    socket: UnixDatagram,
    /// Whether it did not read the last message. Until it reads, messages do not wait for it.
    stalled: Cell<bool>,
    journal: File,
    number: u64,
    written: u64,
    rewrite_at: u64,
    /// The listening socket that systemd has made.
    pub(crate) activated: Option<UnixListener>,
    /// The listening socket for HTTP that systemd has made.
    pub(crate) activated_http: Option<TcpListener>,
}

/// The state that the manager held.
pub(crate) struct Held {
    pub(crate) header: HandoverHeader,
    pub(crate) sockets: Sockets,
    pub(crate) journal: Journal,
}

impl Manager {
    /// The manager if there is one, and the state that it held for this daemon.
    ///
    /// # Errors
    /// `Io` when its socket fails, `Invalid` for wrong environment variables.
    pub(crate) fn find() -> Result<(Option<Self>, Option<Held>)> {
        let Some(path) = std::env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty()) else {
            return Ok((None, None));
        };
        let io = |error| Error::io("reaching the service manager", &error).in_field("NOTIFY_SOCKET");
        let bytes = path.as_encoded_bytes();
        let address = match bytes.strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name),
            None => SocketAddr::from_pathname(&path),
        };
        let socket = UnixDatagram::unbound().map_err(io)?;
        socket.connect_addr(&address.map_err(io)?).map_err(io)?;
        socket.set_write_timeout(Some(NOTIFY_TIMEOUT)).map_err(io)?;
        let mut this = Self {
            socket,
            stalled: Cell::new(false),
            journal: memfd()?,
            number: 0,
            written: 0,
            rewrite_at: 0,
            activated: None,
            activated_http: None,
        };
        let mut fds = HashMap::new();
        for (name, fd) in listen_fds_with_names()? {
            // All sockets of a unit have one name.
            match (name == ACTIVATED).then(|| socket_domain(&fd)) {
                Some(Ok(AddressFamily::UNIX)) => this.activated = Some(fd.into()),
                Some(Ok(AddressFamily::INET | AddressFamily::INET6)) => this.activated_http = Some(fd.into()),
                Some(_) => tracing::warn!("systemd passed a socket of another kind, which is not used"),
                None => drop(fds.insert(name, fd)),
            }
        }
        let numbers = fds.keys().filter_map(|name| name.strip_prefix(JOURNAL)?.parse().ok());
        this.number = numbers.max().unwrap_or(0);
        let held = this.read(&mut fds).unwrap_or_else(|error| {
            tracing::error!("the state at the service manager cannot be used: {error}");
            None
        });
        // The remaining descriptors have no use.
        fds.keys().for_each(|name| this.remove_fd(name));
        if let Some(lock) = fds.get(LOCK) {
            // This daemon needs the lock now, before the manager closes its descriptor.
            let _ = flock(lock, FlockOperation::Unlock);
        }
        Ok((Some(this), held))
    }

    /// Reads the newest journal up to its last whole line.
    fn read(&self, fds: &mut HashMap<String, OwnedFd>) -> Result<Option<Held>> {
        let Some(file) = fds.remove(&format!("{JOURNAL}{}", self.number)) else { return Ok(None) };
        let io = |error| Error::io("reading the journal", &error);
        let mut file = File::from(file);
        file.seek(SeekFrom::Start(0)).map_err(io)?;
        let mut bytes = Vec::new();
        file.take(JOURNAL_BYTES_MAX).read_to_end(&mut bytes).map_err(io)?;
        let mut lines = bytes.split(|byte| *byte == b'\n');
        let corrupt = |error: serde_json::Error| Error::corrupt(format!("the journal: {error}"));
        let header: HandoverHeader = serde_json::from_slice(lines.next().unwrap_or_default()).map_err(corrupt)?;
        let mut journal = Journal::default();
        // An incomplete last line is left out.
        for change in lines.map_while(|line| serde_json::from_slice::<Event>(line).ok()) {
            let segment = match &change {
                Event::Published { segment: Some(segment), .. } => fds.get(&format!("{SEGMENT}{}", segment.id)),
                _ => None,
            };
            let segment = segment.map(OwnedFd::try_clone).transpose().map_err(io)?;
            // The descriptor of a segment without tensors has been removed; the events of its tensors fail.
            if let Err(error) = journal.apply(change, segment.into_iter().collect()) {
                tracing::debug!("{error}");
            }
        }
        journal.segments().for_each(|segment| drop(fds.remove(&format!("{SEGMENT}{}", segment.info.id))));
        let mut fd = |name| fds.remove(name).ok_or_else(|| Error::corrupt(format!("the {name} is missing")));
        let (listener, lock) = (fd(LISTENER)?, fd(LOCK)?);
        let listening = Listening::from_parts(listener.into(), header.socket.clone(), lock, None);
        // Without the locks, sessions that do not resume at once are lost. The tensors are not.
        let locks = fds.remove(SESSIONS).map_or_else(LockTable::create, |fd| Ok(LockTable::open(fd)))?;
        let http = fds.remove(HTTP).map(TcpListener::from);
        let header = HandoverHeader { http: http.is_some(), server: None, index_slots: 0, orphaned: false, ..header };
        Ok(Some(Held { header, sockets: Sockets { listening, locks, http }, journal }))
    }

    /// Stores the whole state at the manager.
    ///
    /// # Errors
    /// `Io` when its socket fails.
    pub(crate) fn store_all(&mut self, header: &HandoverHeader, sockets: &Sockets, journal: &Journal) -> Result<()> {
        self.store_listening(&sockets.listening)?;
        self.store_fd(SESSIONS, sockets.locks.as_fd())?;
        if let Some(http) = &sockets.http {
            self.store_http(http.as_fd())?;
        }
        for segment in journal.segments() {
            self.store_fd(&format!("{SEGMENT}{}", segment.info.id), segment.file.as_fd())?;
        }
        self.rewrite(header, journal)
    }

    /// Stores the socket and its lock at the manager.
    ///
    /// # Errors
    /// `Io` when its socket fails.
    pub(crate) fn store_listening(&self, listening: &Listening) -> Result<()> {
        self.store_fd(LISTENER, listening.listener().as_fd())?;
        self.store_fd(LOCK, listening.lock())
    }

    /// Stores the socket for HTTP at the manager.
    ///
    /// # Errors
    /// `Io` when its socket fails.
    pub(crate) fn store_http(&self, listener: BorrowedFd<'_>) -> Result<()> {
        self.store_fd(HTTP, listener)
    }

    /// Appends an event to the journal.
    pub(crate) fn append(&mut self, event: &Event, fds: &[OwnedFd]) {
        if let Err(error) = self.try_append(event, fds) {
            tracing::error!("the last event was not stored at the service manager: {error}");
        }
    }

    fn try_append(&mut self, event: &Event, fds: &[OwnedFd]) -> Result<()> {
        if let (Event::Published { segment: Some(segment), .. }, [fd, ..]) = (event, fds) {
            self.store_fd(&format!("{SEGMENT}{}", segment.id), fd.as_fd())?;
        }
        self.write(&serde_json::to_vec(event).map_err(|error| Error::invalid(error.to_string()))?)
    }

    /// Removes a segment without tensors, and rewrites the journal when it has grown too long.
    pub(crate) fn clean_up(&mut self, header: &HandoverHeader, journal: &Journal, freed: Option<u64>) {
        if let Some(segment) = freed {
            self.remove_fd(&format!("{SEGMENT}{segment}"));
        }
        if self.written > self.rewrite_at
            && let Err(error) = self.rewrite(header, journal)
        {
            tracing::error!("the journal was not rewritten: {error}");
        }
    }

    /// Rewrites the journal without past events.
    ///
    /// # Errors
    /// `Io` when the socket of the manager fails.
    pub(crate) fn rewrite(&mut self, header: &HandoverHeader, journal: &Journal) -> Result<()> {
        let encode = |error: serde_json::Error| Error::invalid(error.to_string());
        (self.journal, self.written) = (memfd()?, 0);
        self.write(&serde_json::to_vec(header).map_err(encode)?)?;
        journal.replay(|change, _| self.write(&serde_json::to_vec(&change).map_err(encode)?))?;
        self.rewrite_at = 2 * self.written + GROWTH_BYTES;
        self.number += 1;
        self.store_fd(&format!("{JOURNAL}{}", self.number), self.journal.as_fd())?;
        self.remove_fd(&format!("{JOURNAL}{}", self.number - 1));
        Ok(())
    }

    /// Appends a line with one call, so that a reader finds whole lines.
    fn write(&mut self, line: &[u8]) -> Result<()> {
        let line = [line, b"\n"].concat();
        self.written += line.len() as u64;
        self.journal.write_all(&line).map_err(|error| Error::io("writing the journal", &error))
    }

    /// Reports that the daemon serves clients.
    pub(crate) fn ready(&self, socket: &std::path::Path) {
        self.notify(&format!("READY=1\nSTATUS=listening on {}\n", socket.display()));
    }

    /// Reports that the daemon stops on request, and removes its descriptors.
    pub(crate) fn stopping(&self) {
        self.notify("STOPPING=1\n");
        self.remove_fd(&format!("{JOURNAL}{}", self.number));
        [LISTENER, LOCK, SESSIONS, HTTP].into_iter().for_each(|name| self.remove_fd(name));
    }

    /// Removes the listening socket and its lock, which the daemon has made again.
    pub(crate) fn remove_listening(&self) {
        self.remove_fd(LISTENER);
        self.remove_fd(LOCK);
    }

    fn remove_fd(&self, name: &str) {
        self.notify(&format!("FDSTOREREMOVE=1\nFDNAME={name}\n"));
    }

    fn store_fd(&self, name: &str, fd: BorrowedFd<'_>) -> Result<()> {
        // Without polling: a memfd never reports an end.
        self.send(&format!("FDSTORE=1\nFDPOLL=0\nFDNAME={name}\n"), &[fd])
    }

    fn notify(&self, state: &str) {
        if let Err(error) = self.send(state, &[]) {
            tracing::warn!("{error}");
        }
    }

    fn send(&self, state: &str, fds: &[BorrowedFd<'_>]) -> Result<()> {
        let io = |error: Errno| Error::io("notifying the service manager", &error.into());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io(Errno::NOBUFS));
        }
        let part = [IoSlice::new(state.as_bytes())];
        let wait = if self.stalled.get() { SendFlags::DONTWAIT } else { SendFlags::empty() };
        let sent = sendmsg(&self.socket, &part, &mut ancillary, SendFlags::NOSIGNAL | wait);
        self.stalled.set(sent == Err(Errno::AGAIN));
        sent.map(drop).map_err(io)
    }
}

fn memfd() -> Result<File> {
    Ok(create_memfd("cotensor journal").map_err(|error| error.prefixed("journal"))?.into())
}
