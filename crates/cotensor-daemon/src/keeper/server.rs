//! The server's side: taking over what there is, telling the keeper what changes, and starting another when it dies.

use super::channel::{Birth, Message, PATIENCE, Receiver, Sockets, hand_over, listening_from, say_while};
use super::process::{Image, LIVED, Launch, Parent, standard_input, stop_this_process};
use super::{Change, Entry, Ledger, process_state};
use crate::http::HttpListening;
use crate::segment::file_of;
use crate::spill::SpillFile;
use crate::{Config, Daemon, Listening, Service};
use cotensor_client::protocol::{SegmentInfo, Spec};
use cotensor_core::{Error, MemoryKind, Result};
use cotensor_memory::SharedIndex;
use cotensor_memory::process::{duplicate_fd, raise_fd_limit};
use cotensor_store::backend::Record;
use std::collections::HashMap;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How long a daemon whose keeper was killed goes on when nobody is connected to it.
const ORPHAN_IDLE: Duration = Duration::from_secs(60);
/// How often that is looked at.
const ORPHAN_LOOK: Duration = Duration::from_secs(1);

/// How long a keeper may leave its socket full until this process looks whether that keeper is stopped.
const KEEPER_LOOK: Duration = Duration::from_millis(100);
/// A keeper counts as stopped after so many looks in a row: one look may find a keeper that is just being continued.
const STOPPED_LOOKS: u32 = 2;
/// From a keeper that failed until the next one is started.
const KEEPER_DELAY: Duration = Duration::from_secs(1);

/// Runs a server that a keeper started, until SIGTERM, SIGINT or SIGHUP.
///
/// # Errors
/// `Invalid` when no keeper started this process; `Io`.
pub(super) fn serve(service: Service, launch: Launch) -> Result<()> {
    let (daemon, mut sockets, kept) = take_over(service.config, launch)?;
    let http = match (sockets.http, service.http) {
        (Some(listener), Some(http)) => Some(HttpListening::on(listener, http, sockets.listening.path())?),
        _ => None,
    };
    // What this process holds goes with it, and need not be taken apart first; spilled files are the keeper's to remove.
    std::mem::forget(Arc::clone(&daemon));
    crate::run::serve(&daemon, &mut sockets.listening, http, || kept.ready(daemon.epoch))
}

/// A daemon with everything that the keeper which started this process has kept, and the sockets to serve.
fn take_over(config: Config, launch: Launch) -> Result<(Arc<Daemon>, Sockets, Arc<Kept>)> {
    raise_fd_limit();
    let mut receiver = Receiver::new(standard_input()?);
    let handover = receiver.take_over()?;
    let socket = receiver.socket;
    let keeper = Keeper::Parent(Parent::at_the_other_end(&socket));
    let index = match handover.index {
        Some(fd) => SharedIndex::open(fd, handover.birth.index_slots)?,
        None => SharedIndex::create(crate::index::INDEX_SLOTS)?,
    };
    let io = |error| Error::io("taking over", &error);
    socket.set_write_timeout(Some(KEEPER_LOOK)).map_err(io)?;
    let birth = Birth { server: Some(std::process::id()), index_slots: 0, ..handover.birth };
    let sockets = Sockets::from_descriptors(&birth, &mut handover.sockets.descriptors()?.into_iter())?;
    let kept = Arc::new(Kept {
        orphaned: AtomicBool::new(birth.orphaned),
        birth,
        launch,
        stopping: AtomicBool::new(false),
        state: Mutex::new(State {
            sockets,
            next: handover.ledger.segments().map(|segment| segment.info.id).max().unwrap_or(0),
            ledger: handover.ledger,
            socket: Some(socket.try_clone().map_err(io)?),
            keeper: keeper.pid(),
            patience: PATIENCE,
            numbers: HashMap::new(),
        }),
    });
    let daemon = Daemon::take_over(config, index, Arc::clone(&kept))?;
    let (minding, minded) = (Arc::clone(&kept), Arc::downgrade(&daemon));
    let minding =
        std::thread::Builder::new().name("keeper".to_owned()).spawn(move || minding.mind(socket, keeper, &minded));
    drop(minding.map_err(io)?);
    Ok((daemon, handover.sockets, kept))
}

/// What the keeper is told, and told again should it die.
pub(crate) struct Kept {
    birth: Birth,
    launch: Launch,
    stopping: AtomicBool,
    /// Whether the keeper that somebody started is dead.
    orphaned: AtomicBool,
    state: Mutex<State>,
}

pub(crate) struct State {
    /// What the next keeper is given.
    sockets: Sockets,
    pub(crate) ledger: Ledger,
    /// The keeper's end, while there is one.
    socket: Option<UnixStream>,
    /// The keeper's process.
    keeper: Option<u32>,
    /// How long a keeper that runs may leave what it is told unread.
    patience: Duration,
    /// Segments' numbers by this process's descriptors of them.
    numbers: HashMap<RawFd, u64>,
    next: u64,
}

impl Kept {
    pub(crate) fn secret(&self) -> [u8; 32] {
        self.birth.secret
    }

    /// How many servers there were, this one included.
    pub(crate) fn servers(&self) -> u64 {
        self.birth.servers
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
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
        let known = state.numbers.get(&fd.as_raw_fd()).copied().filter(|number| state.ledger.has_segment(*number));
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
        state.tell(Change::Listed { entry, segment: info }, file)?;
        state.numbers.insert(fd.as_raw_fd(), number);
        Ok(())
    }

    pub(crate) fn gone(&self, record: &Record) {
        self.without_memory(record, Change::Gone(record.id().into()));
    }

    pub(crate) fn spilled(&self, record: &Record, file: SpillFile) {
        self.without_memory(record, Change::Spilled { id: record.id().into(), file });
    }

    /// Tells of something after which a tensor is in no segment.
    fn without_memory(&self, record: &Record, change: Change) {
        let mut state = self.state();
        self.told(state.tell(change, None));
        let fd = record.segment().fd().map(|fd| fd.as_raw_fd());
        let number = fd.and_then(|fd| state.numbers.get(&fd).copied());
        if let (Some(fd), Some(number)) = (fd, number)
            && !state.ledger.has_segment(number)
        {
            state.numbers.remove(&fd);
        }
    }

    pub(crate) fn tell(&self, change: Change) {
        let told = self.state().tell(change, None);
        self.told(told);
    }

    fn told(&self, told: Result<()>) {
        if let Err(error) = told {
            tracing::error!("the keeper was not told: {error}");
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

    /// Tells the keeper that clients are served from now on.
    fn ready(&self, epoch: u64) -> Result<()> {
        self.state().send(&Message::Ready { epoch }, Vec::new())
    }

    /// Waits for the keeper's end and starts the next one, for as long as this server lives.
    fn mind(&self, mut socket: UnixStream, mut keeper: Keeper, daemon: &Weak<Daemon>) {
        let mut image = Image::default();
        loop {
            let began = Instant::now();
            self.wait_for_its_end(&mut socket, daemon);
            if self.stopping.load(Ordering::SeqCst) {
                return;
            }
            let lived = began.elapsed() >= LIVED;
            image = image.next(lived);
            // It may only have stood still: awake again it would end this server, and start one beside the next keeper's.
            keeper.end();
            tracing::warn!("the keeper died; starting another");
            self.orphaned.store(true, Ordering::SeqCst);
            (socket, keeper) = loop {
                match self.next_keeper(image) {
                    Ok(next) => break next,
                    Err(error) => tracing::error!("no keeper: {error}"),
                }
                // Without a keeper, the server's death would cost the tensors: the running program is tried at once.
                if image == Image::Running {
                    std::thread::sleep(KEEPER_DELAY);
                }
                image = image.next(false);
                if self.stopping.load(Ordering::SeqCst) {
                    return;
                }
            };
        }
    }

    /// Reads until the keeper is gone: it says nothing, so whatever ends this ends it. A daemon that nobody answers for,
    /// and nobody uses, is stopped meanwhile.
    fn wait_for_its_end(&self, socket: &mut UnixStream, daemon: &Weak<Daemon>) {
        let orphaned = self.orphaned.load(Ordering::SeqCst);
        let patience = orphaned.then_some(ORPHAN_LOOK);
        drop(socket.set_read_timeout(patience));
        let mut used = Instant::now();
        while let Err(error) = socket.read(&mut [0]) {
            match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => {}
                ErrorKind::Interrupted => continue,
                _ => return,
            }
            if daemon.upgrade().is_some_and(|daemon| daemon.is_used()) {
                used = Instant::now();
            } else if used.elapsed() > ORPHAN_IDLE {
                tracing::warn!("nobody answers for this daemon and nobody uses it: stopping");
                stop_this_process();
                return drop(socket.set_read_timeout(None).and_then(|()| socket.read(&mut [0])));
            }
        }
    }

    fn next_keeper(&self, image: Image) -> Result<(UnixStream, Keeper)> {
        let io = |error| Error::io("starting a keeper", &error);
        let (ours, theirs) = UnixStream::pair().map_err(io)?;
        let copy = ours.try_clone().map_err(io)?;
        // Changes wait for the lock from here on, so that the keeper misses none.
        let mut state = self.state();
        state.socket = None;
        let mut keeper = Keeper::Child(self.launch.keeper(image, theirs)?);
        let birth = Birth { orphaned: true, ..self.birth.clone() };
        if let Err(error) = hand_over(&ours, birth, &state.sockets, None, &state.ledger) {
            keeper.end();
            return Err(error);
        }
        copy.set_write_timeout(Some(KEEPER_LOOK)).map_err(io)?;
        (state.socket, state.keeper) = (Some(copy), keeper.pid());
        Ok((ours, keeper))
    }
}

/// The process that keeps for this server.
enum Keeper {
    /// It started this server, if it still lived when that began.
    Parent(Option<Parent>),
    /// This server started it.
    Child(Child),
}

impl Keeper {
    fn pid(&self) -> Option<u32> {
        match self {
            Self::Parent(parent) => parent.as_ref().map(Parent::pid),
            Self::Child(child) => Some(child.id()),
        }
    }

    /// Makes sure that it is gone: two keepers would start two servers on one socket.
    fn end(&mut self) {
        match self {
            Self::Parent(parent) => {
                if let Some(parent) = parent {
                    parent.end();
                }
            }
            Self::Child(child) => {
                drop(child.kill());
                drop(child.wait());
            }
        }
    }
}

impl State {
    /// Knows a restored segment's descriptor.
    pub(crate) fn number(&mut self, fd: RawFd, number: u64) {
        self.numbers.insert(fd, number);
    }

    /// Writes a change down, and has the keeper do so.
    ///
    /// # Errors
    /// `Invalid` for a change too long to be told, which is written down nowhere; `Corrupt` for one that contradicts what is
    /// written; `Io` when descriptors cannot be duplicated. None when the keeper is gone: the next one is told.
    pub(crate) fn tell(&mut self, change: Change, file: Option<Arc<File>>) -> Result<()> {
        // Until it is sent.
        let copies = file.iter().map(|file| duplicate_fd(&**file)).collect::<Result<_>>()?;
        let message = Message::Change(change);
        self.send(&message, copies)?;
        let Message::Change(change) = message else { return Ok(()) };
        self.ledger.apply_with(change, file).map(drop)
    }

    /// Sends the keeper a message, if there is a keeper.
    ///
    /// # Errors
    /// `Invalid` for one that is too long.
    fn send(&mut self, message: &Message, fds: Vec<OwnedFd>) -> Result<()> {
        let (start, mut stopped) = (Instant::now(), 0);
        let wanted = || {
            let stands_still = matches!(self.keeper.and_then(process_state), Some('T' | 't'));
            stopped = if stands_still { stopped + 1 } else { 0 };
            stopped < STOPPED_LOOKS && start.elapsed() < self.patience
        };
        if let Some(socket) = &self.socket
            && let Err(error) = say_while(socket, message, fds, wanted)
        {
            if error.kind() != cotensor_core::ErrorKind::Io {
                // Nothing was sent: the keeper is well, and knows as much as this server does.
                return Err(error);
            }
            tracing::error!("the keeper does not listen: {error}");
            // Maybe half a message was sent: it is of no use any more, and `mind` starts another.
            drop(socket.shutdown(std::net::Shutdown::Both));
            self.socket = None;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Listening;
    use rustix::process::{Pid, Signal, kill_process};

    /// A link to a keeper, its other end, and the folder of its socket.
    fn linked() -> (State, UnixStream, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let listening = Listening::bind(&folder.path().join("socket")).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_write_timeout(Some(KEEPER_LOOK)).unwrap();
        let state = State {
            sockets: Sockets { listening, http: None },
            ledger: Ledger::default(),
            socket: Some(ours),
            keeper: None,
            patience: PATIENCE,
            numbers: HashMap::new(),
            next: 0,
        };
        (state, theirs, folder)
    }

    #[test]
    fn what_is_too_long_is_not_told_and_the_keeper_is_told_the_rest() {
        let (mut state, theirs, _folder) = linked();
        let long = Change::Noted { key: "long".into(), note: "0".repeat(17 << 20) };
        assert_eq!(state.tell(long, None).unwrap_err().kind(), cotensor_core::ErrorKind::Invalid);
        state.tell(Change::Noted { key: "short".into(), note: "00".into() }, None).unwrap();
        assert_eq!(state.ledger.notes().collect::<Vec<_>>(), [("short", "00")]);
        let (message, _) = Receiver::new(theirs).next().unwrap();
        assert!(matches!(message, Message::Change(Change::Noted { key, .. }) if key == "short"));
        // One that is gone is told nothing more, and the ledger goes on.
        state.tell(Change::Slots(7), None).unwrap();
        assert!(state.socket.is_none() && state.ledger.slots() == 7);
    }

    /// The patience never ends in this test: only the look at the keeper's state ends the wait.
    #[test]
    fn a_stopped_keeper_is_given_up_and_the_ledger_goes_on() {
        let (mut state, _theirs, _folder) = linked();
        let mut keeper = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        kill_process(Pid::from_raw(keeper.id() as i32).unwrap(), Signal::STOP).unwrap();
        (state.keeper, state.patience) = (Some(keeper.id()), Duration::MAX);
        let mut slots = 0;
        while state.socket.is_some() {
            slots += 1;
            state.tell(Change::Slots(slots), None).unwrap();
        }
        assert_eq!(state.ledger.slots(), slots);
        keeper.kill().unwrap();
        keeper.wait().unwrap();
    }
}
