//! systemd as service manager: notifications, and its file descriptor store, which keeps the state when all processes
//! of the daemon die at once.
//!
//! The store holds named descriptors: the sockets, the locks of sessions, each segment, and a memfd with the journal. Events are appended to
//! the journal, which is rewritten when it has grown too long.

use crate::channel::{HandoverHeader, Sockets};
use crate::journal::{Event, Journal};
use crate::journal_file::{JournalFile, line};
use crate::listening::Listening;
use cotensor_core::{Error, Result};
use cotensor_memory::process::{LockTable, listen_fds_with_names};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::sockopt::socket_domain;
use rustix::net::{AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{IoSlice, Read, Seek, SeekFrom};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::time::{Duration, Instant};

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
/// A journal is rewritten when it has grown by its rewritten length and this many bytes.
const GROWTH_BYTES: u64 = 1 << 20;
/// After a failure to rewrite the journal, events of this many bytes are appended before the next attempt.
const RETRY_BYTES: u64 = 64 << 10;
/// A journal that lacks an event is rewritten by the first event after this time.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The most bytes of a journal that are read back.
const JOURNAL_BYTES_MAX: u64 = 1 << 30;

/// The manager that started this process.
pub(crate) struct Manager {
    socket: UnixDatagram,
    /// Whether it did not read the last message. Until it reads, messages do not wait for it.
    stalled: Cell<bool>,
    journal: JournalFile,
    number: u64,
    /// The bytes of events since the journal was rewritten or could not be.
    grown: u64,
    /// The journal is rewritten when it has grown by more bytes.
    rewrite_after: u64,
    /// Whether the journal lacks an event.
    lacks_event: bool,
    /// The time of the next attempt to rewrite such a journal.
    retry_at: Instant,
    /// Segments that the manager did not take.
    missing: HashSet<u64>,
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
    /// The manager behind a socket, which holds nothing yet.
    fn new(socket: UnixDatagram) -> Result<Self> {
        Ok(Self {
            socket,
            stalled: Cell::new(false),
            journal: JournalFile::create()?,
            number: 0,
            grown: 0,
            rewrite_after: 0,
            lacks_event: false,
            retry_at: Instant::now(),
            missing: HashSet::new(),
            activated: None,
            activated_http: None,
        })
    }

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
        let mut this = Self::new(socket)?;
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
        let mut lines = bytes.split(|byte| *byte == b'\n').zip(1..);
        let corrupt = |error: serde_json::Error| Error::corrupt(format!("the journal: {error}"));
        let header: HandoverHeader = serde_json::from_slice(lines.next().unwrap_or_default().0).map_err(corrupt)?;
        let mut journal = Journal::default();
        while let Some((line, number)) = lines.next() {
            let change = match serde_json::from_slice::<Event>(line) {
                Ok(change) => change,
                Err(error) => {
                    // The last line is empty, or incomplete and left out.
                    let more = lines.count();
                    if more > 0 {
                        tracing::error!(
                            "line {number} of the journal and those after it are left out ({more}): {error}"
                        );
                    }
                    break;
                }
            };
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

    /// Appends an event to the journal. After a failure, [`clean_up`](Self::clean_up) rewrites the journal.
    pub(crate) fn append(&mut self, event: &Event, fds: &[OwnedFd]) {
        if let Err(error) = self.try_append(event, fds) {
            tracing::error!("the last event was not stored at the service manager: {error}");
            if !std::mem::replace(&mut self.lacks_event, true) {
                self.rewrite_after = 0;
            }
        }
    }

    fn try_append(&mut self, event: &Event, fds: &[OwnedFd]) -> Result<()> {
        let line = line(event)?;
        self.grown += line.len() as u64;
        if let (Event::Published { segment: Some(segment), .. }, [fd, ..]) = (event, fds) {
            self.store_segment(segment.id, fd.as_fd())?;
        }
        self.journal.append(&line)
    }

    /// Removes a segment without tensors, and rewrites the journal when it has grown too long or lacks an event.
    pub(crate) fn clean_up(&mut self, header: &HandoverHeader, journal: &Journal, freed: Option<u64>) {
        if let Some(segment) = freed {
            self.missing.remove(&segment);
            self.remove_fd(&format!("{SEGMENT}{segment}"));
        }
        let is_due = self.grown > self.rewrite_after || (self.lacks_event && self.retry_at <= Instant::now());
        if is_due && let Err(error) = self.rewrite(header, journal) {
            tracing::error!("the journal was not rewritten: {error}");
            (self.grown, self.rewrite_after, self.retry_at) = (0, RETRY_BYTES, Instant::now() + RETRY_INTERVAL);
        }
    }

    /// Rewrites the journal without past events. After a failure, the former journal goes on.
    ///
    /// # Errors
    /// `Io` when the socket of the manager fails, or a journal cannot be written.
    pub(crate) fn rewrite(&mut self, header: &HandoverHeader, journal: &Journal) -> Result<()> {
        let missing = journal.segments().filter(|segment| self.missing.contains(&segment.info.id));
        for segment in missing.collect::<Vec<_>>() {
            self.store_segment(segment.info.id, segment.file.as_fd())?;
        }
        let mut next = JournalFile::create()?;
        next.append(&line(header)?)?;
        journal.replay(|change, _| next.append(&line(&change)?))?;
        self.store_fd(&format!("{JOURNAL}{}", self.number + 1), next.as_fd())?;
        self.remove_fd(&format!("{JOURNAL}{}", self.number));
        self.number += 1;
        (self.grown, self.rewrite_after, self.lacks_event) = (0, next.written() + GROWTH_BYTES, false);
        self.journal = next;
        Ok(())
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

    /// Stores a segment. After a failure, [`rewrite`](Self::rewrite) does so again.
    fn store_segment(&mut self, segment: u64, fd: BorrowedFd<'_>) -> Result<()> {
        self.missing.insert(segment);
        self.store_fd(&format!("{SEGMENT}{segment}"), fd)?;
        self.missing.remove(&segment);
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{Entry, published};
    use cotensor_client::protocol::Id;
    use std::os::unix::fs::FileExt;

    /// A supervisor's journal, and the manager with its end of the socket.
    struct Supervised {
        manager: Manager,
        theirs: UnixDatagram,
        journal: Journal,
        header: HandoverHeader,
    }

    impl Supervised {
        fn start() -> Self {
            let (socket, theirs) = UnixDatagram::pair().unwrap();
            let manager = Manager::new(socket).unwrap();
            let header = HandoverHeader {
                socket: "socket".into(),
                secret: [0; 32],
                servers: 1,
                server: None,
                index_slots: 0,
                http: false,
                orphaned: false,
            };
            let mut this = Self { manager, theirs, journal: Journal::default(), header };
            this.manager.rewrite(&this.header, &this.journal).unwrap();
            this.apply(published(1, 1, 10, true));
            assert_eq!(this.stored(), ["journal-1", "segment-10"]);
            this
        }

        fn apply(&mut self, (event, fds): (Event, Vec<OwnedFd>)) {
            self.manager.append(&event, &fds);
            let freed = self.journal.apply(event, fds).unwrap();
            self.manager.clean_up(&self.header, &self.journal, freed);
        }

        /// The names that the manager was asked to store since the last call.
        fn stored(&self) -> Vec<String> {
            self.theirs.set_nonblocking(true).unwrap();
            let (mut text, mut names) = ([0; 4096], Vec::new());
            while let Ok(len) = self.theirs.recv(&mut text) {
                let text = std::str::from_utf8(&text[..len]).unwrap();
                names.extend(text.strip_prefix("FDSTORE=1\nFDPOLL=0\nFDNAME=").map(|name| name.trim_end().to_owned()));
            }
            names
        }

        /// The tensors of the journal that the manager has.
        fn entries(&self) -> Vec<Entry> {
            let file = &self.manager.journal.file;
            let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
            file.read_exact_at(&mut bytes, 0).unwrap();
            let mut journal = Journal::default();
            for line in bytes.split(|byte| *byte == b'\n').skip(1).filter(|line| !line.is_empty()) {
                let fd = tempfile::tempfile().unwrap().into();
                journal.apply(serde_json::from_slice(line).unwrap(), vec![fd]).unwrap();
            }
            journal.entries().collect()
        }
    }

    #[test]
    fn event_that_was_not_written_is_in_the_next_journal() {
        let mut supervised = Supervised::start();
        supervised.manager.journal.file = File::options().write(true).open("/dev/full").unwrap();
        supervised.apply(published(2, 1, 11, true));
        assert_eq!(supervised.stored(), ["segment-11", "journal-2"]);
        supervised.apply(published(2, 2, 11, false));
        assert_eq!(supervised.entries(), supervised.journal.entries().collect::<Vec<_>>());
        assert!(supervised.stored().is_empty(), "the journal goes on");
    }

    #[test]
    fn segment_that_the_manager_did_not_take_is_stored_later() {
        let mut supervised = Supervised::start();
        let (socket, theirs) = UnixDatagram::pair().unwrap();
        // A manager that does not listen.
        drop(std::mem::replace(&mut supervised.theirs, theirs));
        supervised.apply(published(2, 1, 11, true));
        supervised.apply((Event::Unlisted(Id { name_id: 1, version: 1 }), Vec::new()));
        supervised.manager.socket = socket;
        supervised.apply((Event::Unlisted(Id { name_id: 1, version: 1 }), Vec::new()));
        assert!(supervised.stored().is_empty(), "the next attempt comes later");
        supervised.manager.retry_at = Instant::now();
        supervised.apply((Event::Unlisted(Id { name_id: 1, version: 1 }), Vec::new()));
        assert_eq!(supervised.stored(), ["segment-11", "journal-2"]);
        assert_eq!(supervised.entries(), supervised.journal.entries().collect::<Vec<_>>());
    }
}
