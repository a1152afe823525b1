//! The server's link to its supervisor: it reports each event before anything else can depend on it.

use super::channel::{HandoverHeader, Message, Sockets, listening_from, send_while};
use super::journal::{Entry, Event, Journal};
use super::process::Launch;
use crate::segment::file_of;
use crate::socket::Listening;
use crate::spill::SpillFile;
use cotensor_client::protocol::{SegmentInfo, Spec};
use cotensor_core::{Error, MemoryKind, Result};
use cotensor_memory::process::{duplicate_fd, state as process_state};
use cotensor_store::backend::Record;
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a supervisor may leave its socket full before this process checks whether it is stopped.
pub(super) const SUPERVISOR_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// A supervisor counts as stopped after this many checks in a row. One check may find one that is being continued.
const STOPPED_CHECKS: u32 = 2;

/// What the supervisor is told, and told again should it die.
pub(crate) struct SupervisorLink {
    pub(super) header: HandoverHeader,
    pub(super) launch: Launch,
    pub(super) stopping: AtomicBool,
    /// Whether the supervisor that somebody started is dead.
    pub(super) orphaned: AtomicBool,
    pub(super) state: Mutex<LinkState>,
}

pub(crate) struct LinkState {
    /// What the next supervisor is given.
    pub(super) sockets: Sockets,
    pub(crate) journal: Journal,
    /// The supervisor's end, while there is one.
    pub(super) socket: Option<UnixStream>,
    /// The supervisor's process.
    pub(super) supervisor: Option<u32>,
    /// How long a supervisor that runs may leave what it is told unread.
    pub(super) patience: Duration,
    /// Segments' numbers by this process's descriptors of them.
    pub(super) numbers: HashMap<RawFd, u64>,
    pub(super) next: u64,
}

impl SupervisorLink {
    pub(crate) fn secret(&self) -> [u8; 32] {
        self.header.secret
    }

    /// How many servers there were, this one included.
    pub(crate) fn servers(&self) -> u64 {
        self.header.servers
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn listing(&self, record: &Record) {
        if let Err(error) = self.try_listing(record) {
            tracing::error!("{} would not outlive this server: {error}", record.name());
        }
    }

    fn try_listing(&self, record: &Record) -> Result<()> {
        let segment = record.segment();
        let fd = segment.fd().ok_or_else(|| Error::unsupported("this segment has no descriptor"))?;
        let mut state = self.state();
        // A descriptor's number may come again for another segment, and what was not told is not known.
        let known = state.numbers.get(&fd.as_raw_fd()).copied().filter(|number| state.journal.has_segment(*number));
        let (info, file) = match known {
            Some(_) => (None, None),
            None => {
                let file = file_of(&**segment).ok_or_else(|| Error::unsupported("this segment is not the daemon's"))?;
                let found = rustix::fs::fstat(fd).map_err(|error| Error::io("looking at a segment", &error.into()))?;
                let (id, slab) = (state.next + 1, segment.kind() == MemoryKind::Slab);
                (Some(SegmentInfo { id, bytes: found.st_size as u64, slab }), Some(file))
            }
        };
        let number = known.unwrap_or(state.next + 1);
        state.next = state.next.max(number);
        let entry = Box::new(Entry {
            id: record.id().into(),
            spec: Spec::from(&record.spec()),
            segment: number,
            offset: record.layout().offset_bytes() + segment.fd_offset(),
            key: record.key().map(|key| key.0.to_string()),
            versions: record.id().version,
            current: true,
            removed: false,
            spilled: None,
            created_ns: u64::try_from(record.created().as_nanos()).ok(),
        });
        state.record(Event::Published { entry, segment: info }, file)?;
        state.numbers.insert(fd.as_raw_fd(), number);
        Ok(())
    }

    pub(crate) fn gone(&self, record: &Record) {
        self.without_memory(record, Event::Freed(record.id().into()));
    }

    pub(crate) fn spilled(&self, record: &Record, file: SpillFile) {
        self.without_memory(record, Event::Spilled { id: record.id().into(), file });
    }

    /// Tells of something after which a tensor is in no segment.
    fn without_memory(&self, record: &Record, change: Event) {
        let mut state = self.state();
        self.told(state.record(change, None));
        let fd = record.segment().fd().map(|fd| fd.as_raw_fd());
        let number = fd.and_then(|fd| state.numbers.get(&fd).copied());
        if let (Some(fd), Some(number)) = (fd, number)
            && !state.journal.has_segment(number)
        {
            state.numbers.remove(&fd);
        }
    }

    pub(crate) fn record(&self, change: Event) {
        let told = self.state().record(change, None);
        self.told(told);
    }

    fn told(&self, told: Result<()>) {
        if let Err(error) = told {
            tracing::error!("the supervisor was not told: {error}");
        }
    }

    /// This server listens on another socket, or has another lock: the next server is to have them.
    pub(crate) fn moved(&self, listening: &Listening) {
        let mut state = self.state();
        let moved = listening.descriptors().and_then(|fds| {
            let copies = listening.descriptors()?;
            state.sockets.listening = listening_from(listening.path(), &mut copies.into_iter())?;
            state.send(&Message::Moved, fds.into())
        });
        self.told(moved);
    }

    /// This server ends because it was asked to: nobody is to follow it.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        let mut state = self.state();
        self.told(state.send(&Message::Stopping, Vec::new()));
        state.socket = None;
    }

    /// Tells the supervisor that clients are served from now on.
    pub(super) fn ready(&self, epoch: u64) -> Result<()> {
        self.state().send(&Message::Ready { epoch }, Vec::new())
    }
}

impl LinkState {
    /// Knows a restored segment's descriptor.
    pub(crate) fn number(&mut self, fd: RawFd, number: u64) {
        self.numbers.insert(fd, number);
    }

    /// Writes a change down, and has the supervisor do so.
    ///
    /// # Errors
    /// `Invalid` for a change too long to be told, which is written down nowhere; `Corrupt` for one that contradicts what is
    /// written; `Io` when descriptors cannot be duplicated. None when the supervisor is gone: the next one is told.
    pub(crate) fn record(&mut self, change: Event, file: Option<Arc<File>>) -> Result<()> {
        // Until it is sent.
        let copies = file.iter().map(|file| duplicate_fd(&**file)).collect::<Result<_>>()?;
        let message = Message::Event(change);
        self.send(&message, copies)?;
        let Message::Event(change) = message else { return Ok(()) };
        self.journal.apply_with(change, file).map(drop)
    }

    /// Sends the supervisor a message, if there is a supervisor.
    ///
    /// # Errors
    /// `Invalid` for one that is too long.
    fn send(&mut self, message: &Message, fds: Vec<OwnedFd>) -> Result<()> {
        let (start, mut stopped) = (Instant::now(), 0);
        let wanted = || {
            let stands_still = matches!(self.supervisor.and_then(process_state), Some('T' | 't'));
            stopped = if stands_still { stopped + 1 } else { 0 };
            stopped < STOPPED_CHECKS && start.elapsed() < self.patience
        };
        if let Some(socket) = &self.socket
            && let Err(error) = send_while(socket, message, fds, wanted)
        {
            if error.kind() != cotensor_core::ErrorKind::Io {
                // Nothing was sent: the supervisor is well, and knows as much as this server does.
                return Err(error);
            }
            tracing::error!("the supervisor does not listen: {error}");
            // Maybe half a message was sent: it is of no use any more, and `mind` starts another.
            drop(socket.shutdown(std::net::Shutdown::Both));
            self.socket = None;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::channel::{CHANNEL_TIMEOUT, Receiver};
    use super::*;
    use crate::Listening;
    use rustix::process::{Pid, Signal, kill_process};

    /// A link to a supervisor, its other end, and the folder of its socket.
    fn linked() -> (LinkState, UnixStream, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let listening = Listening::bind(&folder.path().join("socket")).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_write_timeout(Some(SUPERVISOR_CHECK_INTERVAL)).unwrap();
        let state = LinkState {
            sockets: Sockets { listening, http: None },
            journal: Journal::default(),
            socket: Some(ours),
            supervisor: None,
            patience: CHANNEL_TIMEOUT,
            numbers: HashMap::new(),
            next: 0,
        };
        (state, theirs, folder)
    }

    #[test]
    fn what_is_too_long_is_not_told_and_the_keeper_is_told_the_rest() {
        let (mut state, theirs, _folder) = linked();
        let long = Event::NotePut { key: "long".into(), note: "0".repeat(17 << 20) };
        assert_eq!(state.record(long, None).unwrap_err().kind(), cotensor_core::ErrorKind::Invalid);
        state.record(Event::NotePut { key: "short".into(), note: "00".into() }, None).unwrap();
        assert_eq!(state.journal.notes().collect::<Vec<_>>(), [("short", "00")]);
        let (message, _) = Receiver::new(theirs).next().unwrap();
        assert!(matches!(message, Message::Event(Event::NotePut { key, .. }) if key == "short"));
        // One that is gone is told nothing more, and the journal goes on.
        state.record(Event::Slots(7), None).unwrap();
        assert!(state.socket.is_none() && state.journal.slots() == 7);
    }

    /// The patience never ends in this test: only the look at the supervisor's state ends the wait.
    #[test]
    fn a_stopped_keeper_is_given_up_and_the_ledger_goes_on() {
        let (mut state, _theirs, _folder) = linked();
        let mut supervisor = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        kill_process(Pid::from_raw(supervisor.id() as i32).unwrap(), Signal::STOP).unwrap();
        (state.supervisor, state.patience) = (Some(supervisor.id()), Duration::MAX);
        let mut slots = 0;
        while state.socket.is_some() {
            slots += 1;
            state.record(Event::Slots(slots), None).unwrap();
        }
        assert_eq!(state.journal.slots(), slots);
        supervisor.kill().unwrap();
        supervisor.wait().unwrap();
    }
}
