//! The daemon may die: a keeper, which does next to nothing and therefore lives on, holds the listening socket, every
//! published segment's descriptor and what there is to know about it, and starts the next server with them.
//!
//! ```text
//! keeper --- socket pair (the server's standard input) --- server --- clients
//! ```
//!
//! The server tells of every change before anybody else can know of it; what it has sent arrives even if it dies right
//! after. When it dies, the keeper ends the index, so that no client goes on answering itself from it, and starts the next
//! one, which verifies every seal and size. Clients meanwhile wait in the listening socket's queue. When the keeper
//! dies, the server starts a new one and tells it everything. Only both at the same time lose what there is.

mod channel;
mod ledger;
mod process;
mod server;

pub use process::Launch;
pub use server::{serve, take_over};

pub(crate) use ledger::{Change, Entry, Ledger, Segment};
pub(crate) use server::Kept;

use crate::index::INDEX_SLOTS;
use crate::{Config, Listening};
use channel::{Birth, Handover, Message, Receiver, hand_over};
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_memory::Index;
use process::Server;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::signal::unix::{SignalKind, signal};

/// How long a server has to stop when it is asked to.
const STOP_TIME: Duration = Duration::from_secs(1);
/// A server that lived this long was not stillborn.
const LIVED: Duration = Duration::from_secs(1);
/// Between a stillborn server and the next attempt, growing.
const DELAY_MIN: Duration = Duration::from_millis(20);
const DELAY_MAX: Duration = Duration::from_millis(500);

/// What a keeper keeps.
struct Estate {
    birth: Birth,
    listening: Listening,
    ledger: Ledger,
    /// The index of the server that lives, where this process can write it.
    index: Option<Index>,
}

/// How it went with a server.
enum End {
    Stopped,
    Died,
}

/// Binds the socket and keeps a server running on it until that is asked to stop, by SIGTERM or SIGINT here or there.
/// Blocks; to be called from the program's start, in a process that does nothing else.
///
/// # Errors
/// `Conflict` while another daemon lives; `Io` for what the system refuses, and when the first server cannot be started.
pub fn run(config: &Config, launch: &Launch) -> Result<()> {
    let mut listening = Listening::bind(&config.socket)?;
    listening.own();
    let mut secret = [0; 32];
    getrandom::fill(&mut secret).map_err(|error| Error::new(ErrorKind::Io, error.to_string()))?;
    let birth = Birth { socket: config.socket.clone(), secret, servers: 0, server: None, index_slots: 0 };
    keep(Estate { birth, listening, ledger: Ledger::default(), index: None }, launch, None)
}

/// Goes on for a keeper that died: the server that started this process hands everything over on standard input.
///
/// # Errors
/// As [`run`].
pub fn resume(launch: &Launch) -> Result<()> {
    let mut receiver = Receiver::new(process::standard_input()?);
    let Handover { birth, mut listening, ledger, .. } = receiver.take_over()?;
    listening.own();
    let server = Server { child: None, pid: birth.server };
    keep(Estate { birth, listening, ledger, index: None }, launch, Some((server, receiver)))
}

fn keep(mut estate: Estate, launch: &Launch, first: Option<(Server, Receiver)>) -> Result<()> {
    process::raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::io("starting the keeper", &error))?;
    let (mut next, mut delay, mut known_to_start) = (first, DELAY_MIN, false);
    runtime.block_on(async {
        let mut stop = Stop::new()?;
        loop {
            let began = Instant::now();
            let (mut server, receiver) = match next.take().map_or_else(|| estate.start(launch), Ok) {
                Ok(started) => started,
                Err(error) if !known_to_start => return Err(error),
                Err(error) => {
                    tracing::error!("no server could be started: {error}");
                    tokio::select! {
                        () = tokio::time::sleep(DELAY_MAX) => continue,
                        () = stop.asked() => return Ok(()),
                    }
                }
            };
            let end = estate.follow(&server, receiver, &mut stop).await;
            // Before anybody can ask the next server: nobody answers himself from this one's index.
            if let Some(index) = estate.index.take() {
                index.end();
            }
            server.end();
            if let Ok(End::Stopped) = end {
                return Ok(());
            }
            if let Err(error) = end {
                tracing::error!("the server was given up: {error}");
            }
            known_to_start = true;
            delay = if began.elapsed() >= LIVED { DELAY_MIN } else { (delay * 2).min(DELAY_MAX) };
            tracing::warn!("the server died; the next one takes over {} tensors", estate.ledger.entries().count());
            tokio::select! {
                () = tokio::time::sleep(if began.elapsed() >= LIVED { Duration::ZERO } else { delay / 2 }) => {}
                () = stop.asked() => return Ok(()),
            }
        }
    })
}

impl Estate {
    /// Starts a server and hands everything over.
    fn start(&mut self, launch: &Launch) -> Result<(Server, Receiver)> {
        self.birth.servers += 1;
        let io = |error| Error::io("starting a server", &error);
        let (ours, theirs) = UnixStream::pair().map_err(io)?;
        let index = Index::create(INDEX_SLOTS)?;
        let mut server = launch.server(theirs)?;
        let birth = Birth { server: server.pid, index_slots: index.slots(), ..self.birth.clone() };
        let fd = index.fd().try_clone_to_owned().map_err(io)?;
        if let Err(error) = hand_over(&ours, birth, &self.listening, Some(fd), &self.ledger) {
            server.end();
            return Err(error);
        }
        self.index = Some(index);
        Ok((server, Receiver::new(ours)))
    }

    /// Writes down what the server tells until it ends.
    async fn follow(&mut self, server: &Server, mut receiver: Receiver, stop: &mut Stop) -> Result<End> {
        let io = |error| Error::io("following the server", &error);
        receiver.socket.set_nonblocking(true).map_err(io)?;
        let socket = tokio::net::UnixStream::from_std(receiver.socket.try_clone().map_err(io)?).map_err(io)?;
        let (mut stopping, mut patience) = (false, None);
        loop {
            let overdue = async {
                match patience {
                    Some(patience) => tokio::time::sleep_until(patience).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                ready = socket.readable() => ready.map_err(io)?,
                () = stop.asked(), if patience.is_none() => {
                    server.ask_to_stop();
                    stopping = true;
                    patience = Some(tokio::time::Instant::now() + STOP_TIME);
                    continue;
                }
                () = overdue => {
                    server.kill();
                    return Ok(End::Stopped);
                }
            }
            match socket.try_io(Interest::READABLE, || receiver.fill()) {
                Ok(0) => return Ok(if stopping { End::Stopped } else { End::Died }),
                Ok(_) => {}
                Err(error)
                    if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted) => {}
                // Its death, with something of ours unread.
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {
                    return Ok(if stopping { End::Stopped } else { End::Died });
                }
                Err(error) => return Err(io(error)),
            }
            while let Some((message, fds)) = receiver.take()? {
                match message {
                    Message::Change(change) => self.ledger.apply(change, fds)?,
                    Message::Stopping => stopping = true,
                    other => return Err(Error::corrupt(format!("{other:?} from a server"))),
                }
            }
        }
    }
}

/// Being asked to stop.
struct Stop {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Stop {
    fn new() -> Result<Self> {
        let listen = |kind| signal(kind).map_err(|error| Error::io("listening for signals", &error));
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    async fn asked(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
