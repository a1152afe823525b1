//! The server's link to its supervisor: it reports each event before anything else can depend on it.

use crate::channel::{CHANNEL_TIMEOUT, HandoverHeader, Message, Sockets, listening_from, send_while};
use crate::journal::{Entry, Event, Journal};
use crate::launch::Launch;
use cotensor_client::protocol::SegmentInfo;
use cotensor_core::sync::lock;
use cotensor_core::{Device, ErrorKind, Result};
use cotensor_memory::process::{LockTable, duplicate_fd, duplicate_fds, state as process_state};
use std::collections::HashMap;
use std::fs::File;
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How long a supervisor may leave its socket full before this process checks whether it is stopped.
pub(crate) const SUPERVISOR_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// A supervisor counts as stopped after this many checks in a row. One check may find one that is being continued.
const STOPPED_CHECKS: u32 = 2;

/// The link to the supervisor, and the journal for the next supervisor.
pub struct SupervisorLink {
    pub(crate) header: HandoverHeader,
    pub(crate) launch: Launch,
    pub(crate) stopping: AtomicBool,
    /// Whether the supervisor that a user or the system started is dead.
    pub(crate) orphaned: AtomicBool,
    state: Mutex<LinkState>,
}

/// The changing part of a link.
pub struct LinkState {
    /// The sockets for the next supervisor.
    pub(crate) sockets: Sockets,
    pub(crate) journal: Journal,
    /// The connection to the supervisor; none between two supervisors.
    pub(crate) socket: Option<UnixStream>,
    /// The supervisor's process.
    pub(crate) supervisor: Option<u32>,
    /// How long a running supervisor may read nothing.
    timeout: Duration,
    /// The numbers of segments by this process's descriptors.
    numbers: HashMap<RawFd, u64>,
    /// The highest number of a segment so far.
    last: u64,
}

/// The memory of a published tensor.
pub struct SegmentFile {
    /// Its length in bytes.
    pub bytes: u64,
    /// Whether other tensors of its client are in it.
    pub slab: bool,
    /// The device that has the memory.
    pub device: Device,
    /// Its descriptor.
    pub file: Arc<File>,
}

impl SupervisorLink {
    pub(crate) fn new(launch: Launch, header: HandoverHeader, state: LinkState) -> Self {
        Self {
            orphaned: AtomicBool::new(header.orphaned),
            header,
            launch,
            stopping: AtomicBool::new(false),
            state: Mutex::new(state),
        }
    }

    /// Locks the changing part. Events wait meanwhile.
    pub fn state(&self) -> MutexGuard<'_, LinkState> {
        lock(&self.state)
    }

    /// A secret that all servers of the supervisor have.
    pub fn secret(&self) -> [u8; 32] {
        self.header.secret
    }

    /// The number of servers so far, including this one.
    pub fn servers(&self) -> u64 {
        self.header.servers
    }

    /// The process of the supervisor; `None` between two supervisors.
    pub fn supervisor(&self) -> Option<u32> {
        self.state().supervisor
    }

    /// The locks of the sessions of all servers.
    ///
    /// # Errors
    /// `Io` when no more descriptors may be open.
    pub fn lock_table(&self) -> Result<LockTable> {
        Ok(LockTable::open(duplicate_fd(&self.state().sockets.locks)?))
    }

    /// Reports an event that brings no descriptor. A failure is logged.
    pub fn record(&self, event: Event) {
        let outcome = self.state().record(event, None);
        log_failure(outcome);
    }

    /// Reports a published tensor, whose memory has the descriptor `fd`, and `segment` with the first tensor in it. The number of the
    /// segment is set here.
    ///
    /// # Errors
    /// Those of `segment`; `Invalid` for an event that is too long for a message; `Corrupt` for one that contradicts the journal.
    pub fn record_published(
        &self,
        entry: Entry,
        fd: BorrowedFd<'_>,
        segment: impl FnOnce() -> Result<SegmentFile>,
    ) -> Result<()> {
        let mut state = self.state();
        // The system reuses descriptor numbers, and the journal may not have the segment.
        let known = state.numbers.get(&fd.as_raw_fd()).copied().filter(|number| state.journal.has_segment(*number));
        let number = known.unwrap_or(state.last + 1);
        let (info, file) = match known {
            Some(_) => (None, None),
            None => {
                let SegmentFile { bytes, slab, device, file } = segment()?;
                (Some(SegmentInfo { id: number, bytes, slab, device }), Some(file))
            }
        };
        state.last = state.last.max(number);
        let entry = Box::new(Entry { segment: number, ..entry });
        state.record(Event::Published { entry, segment: info }, file)?;
        state.numbers.insert(fd.as_raw_fd(), number);
        Ok(())
    }

    /// Reports an event after which a tensor is no longer in the segment with the descriptor `fd`. A failure is logged.
    pub fn record_without_segment(&self, event: Event, fd: Option<BorrowedFd<'_>>) {
        let mut state = self.state();
        log_failure(state.record(event, None));
        let fd = fd.map(|fd| fd.as_raw_fd());
        let number = fd.and_then(|fd| state.numbers.get(&fd).copied());
        if let (Some(fd), Some(number)) = (fd, number)
            && !state.journal.has_segment(number)
        {
            state.numbers.remove(&fd);
        }
    }

    /// Reports that this server serves clients now.
    ///
    /// # Errors
    /// None in practice: the message is short, and a dead supervisor is not an error.
    pub fn ready(&self, epoch: u64) -> Result<()> {
        self.state().send(&Message::Ready { epoch }, &[])
    }

    /// Reports that this server has made its socket at `path`, or the socket's lock, again. `fds` are those of
    /// [`Listening::descriptors`](crate::Listening::descriptors). A failure is logged.
    pub fn moved(&self, path: &Path, fds: [BorrowedFd<'_>; 3]) {
        let mut state = self.state();
        let moved = duplicate_fds(fds).and_then(|copies| {
            state.sockets.listening = listening_from(path, &mut copies.into_iter())?;
            state.send(&Message::Moved, &fds)
        });
        log_failure(moved);
    }

    /// Reports that this server serves HTTP on `listener` at the request of a client.
    ///
    /// # Errors
    /// `Io` when no more descriptors may be open.
    pub fn started_http(&self, listener: &TcpListener) -> Result<()> {
        let mut state = self.state();
        state.sockets.http = Some(duplicate_fd(listener)?.into());
        state.send(&Message::HttpStarted, &[listener.as_fd()])
    }

    /// Reports that this server stops on request.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        let mut state = self.state();
        log_failure(state.send(&Message::Stopping, &[]));
        state.socket = None;
    }
}

fn log_failure(outcome: Result<()>) {
    if let Err(error) = outcome {
        tracing::error!("an event was not recorded: {error}");
    }
}

impl LinkState {
    /// A server has `sockets` and `journal`; `socket` is its connection to the process `supervisor`.
    pub(crate) fn new(sockets: Sockets, journal: Journal, socket: UnixStream, supervisor: Option<u32>) -> Self {
        Self {
            sockets,
            last: journal.segments().map(|segment| segment.info.id).max().unwrap_or(0),
            journal,
            socket: Some(socket),
            supervisor,
            timeout: CHANNEL_TIMEOUT,
            numbers: HashMap::new(),
        }
    }

    /// The state that this server took over, with its own events.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Enters the descriptor of a restored segment.
    pub fn enter_segment(&mut self, fd: RawFd, number: u64) {
        self.numbers.insert(fd, number);
    }

    /// Sends an event to the supervisor, and applies it to the journal.
    ///
    /// # Errors
    /// `Invalid` for an event that is too long for a message and is recorded nowhere; `Corrupt` for one that
    /// contradicts the journal. A dead supervisor is not an error: the next one gets the journal. The limit of open
    /// descriptors is not an error either: `file` is sent as it is.
    fn record(&mut self, event: Event, file: Option<Arc<File>>) -> Result<()> {
        let message = Message::Event(event);
        let fds: Vec<BorrowedFd<'_>> = file.iter().map(|file| file.as_fd()).collect();
        self.send(&message, &fds)?;
        let Message::Event(event) = message else { return Ok(()) };
        self.journal.apply_with(event, file).map(drop)
    }

    /// Sends the supervisor a message, if there is a supervisor.
    ///
    /// # Errors
    /// `Invalid` for one that is too long.
    fn send(&mut self, message: &Message, fds: &[BorrowedFd<'_>]) -> Result<()> {
        let (start, mut stopped) = (Instant::now(), 0);
        let wanted = || {
            let is_stopped = matches!(self.supervisor.and_then(process_state), Some('T' | 't'));
            stopped = if is_stopped { stopped + 1 } else { 0 };
            stopped < STOPPED_CHECKS && start.elapsed() < self.timeout
        };
        if let Some(socket) = &self.socket
            && let Err(error) = send_while(socket, message, fds, wanted)
        {
            if error.kind() != ErrorKind::Io {
                // Nothing was sent, so the two journals are still equal.
                return Err(error);
            }
            tracing::error!("the supervisor does not read: {error}");

            let _ = socket.shutdown(std::net::Shutdown::Both);
            self.socket = None;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::Receiver;
    use crate::listening::Listening;
    use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};

    /// A link to a supervisor, its other end, and the folder of its socket.
    fn linked() -> (LinkState, UnixStream, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let listening = Listening::bind(&folder.path().join("socket")).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_write_timeout(Some(SUPERVISOR_CHECK_INTERVAL)).unwrap();
        let sockets = Sockets { listening, locks: LockTable::create().unwrap(), http: None };
        (LinkState::new(sockets, Journal::default(), ours, None), theirs, folder)
    }

    #[test]
    fn event_that_is_too_long_is_recorded_nowhere() {
        let (mut state, theirs, _folder) = linked();
        let long = Event::NotePut { key: "long".into(), note: "0".repeat(17 << 20) };
        assert_eq!(state.record(long, None).unwrap_err().kind(), cotensor_core::ErrorKind::Invalid);
        state.record(Event::NotePut { key: "short".into(), note: "00".into() }, None).unwrap();
        assert_eq!(state.journal.notes().collect::<Vec<_>>(), [("short", "00")]);
        let (message, _) = Receiver::new(theirs).next().unwrap();
        assert!(matches!(message, Message::Event(Event::NotePut { key, .. }) if key == "short"));
        // After the supervisor's end, the journal still applies events.
        state.record(Event::NameIds(7), None).unwrap();
        assert!(state.socket.is_none() && state.journal.name_ids() == 7);
    }

    /// A tensor that a client has may not depend on a free descriptor of the server.
    #[test]
    fn descriptor_is_recorded_when_no_other_may_be_opened() {
        let (mut state, theirs, _folder) = linked();
        let file = Arc::new(tempfile::tempfile().unwrap());
        let inode = |file: &File| rustix::fs::fstat(file).unwrap().st_ino;
        let before = getrlimit(Resource::Nofile);
        let last = duplicate_fd(&*file).unwrap().as_raw_fd() as u64;
        setrlimit(Resource::Nofile, Rlimit { current: Some(last), ..before }).unwrap();
        assert!(duplicate_fd(&*file).is_err(), "the limit is reached");
        state.record(Event::NameIds(7), Some(Arc::clone(&file))).unwrap();
        setrlimit(Resource::Nofile, before).unwrap();
        let (message, fds) = Receiver::new(theirs).next().unwrap();
        assert!(matches!(message, Message::Event(Event::NameIds(7))));
        assert_eq!(fds.into_iter().map(|fd| inode(&fd.into())).collect::<Vec<_>>(), [inode(&file)]);
    }

    /// The timeout never ends in this test: only the check of the supervisor's state ends the wait.
    #[test]
    fn stopped_supervisor_is_disconnected_and_the_journal_continues() {
        let (mut state, _theirs, _folder) = linked();
        let mut supervisor = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        kill_process(Pid::from_raw(supervisor.id() as i32).unwrap(), Signal::STOP).unwrap();
        (state.supervisor, state.timeout) = (Some(supervisor.id()), Duration::MAX);
        let mut name_ids = 0;
        while state.socket.is_some() {
            name_ids += 1;
            state.record(Event::NameIds(name_ids), None).unwrap();
        }
        assert_eq!(state.journal.name_ids(), name_ids);
        supervisor.kill().unwrap();
        supervisor.wait().unwrap();
    }
}
