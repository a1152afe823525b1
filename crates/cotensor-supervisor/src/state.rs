//! The state of a supervisor.

use crate::channel::{Handover, HandoverHeader, Receiver, Sockets, hand_over, listening_from};
use crate::journal::{Event, Journal};
use crate::launch::{Image, Launch};
use crate::process::Server;
use crate::successor;
use crate::systemd::{Held, Manager};
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_memory::SharedIndex;
use cotensor_memory::process::random_bytes;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// The number of names in a server's index. A lookup of another name is a call.
pub const INDEX_SLOTS: u32 = 1 << 16;

/// The state of a supervisor. Dropping it closes the sockets first, so that no client waits while memory is freed.
pub struct Supervisor {
    pub(crate) header: HandoverHeader,
    pub(crate) sockets: Sockets,
    /// The current server's index, which this process can write.
    pub(crate) index: Option<SharedIndex>,
    journal: Journal,
    /// The folder of spilled tensors.
    pub(crate) spill: Option<PathBuf>,
    pub(crate) manager: Option<Manager>,
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        if !self.sockets.listening.is_owner() {
            return;
        }
        // Another daemon has this socket, and its files are in the folder.
        let replaced = !self.sockets.listening.has_lock();
        // The socket is removed first, so that no client waits. The lock keeps other daemons away until all files are
        // removed.
        self.sockets.listening.remove();
        for file in self.journal.files() {
            let _ = std::fs::remove_file(&file.path);
        }
        if let Some(folder) = self.spill.as_ref().filter(|_| !replaced) {
            remove_folder(folder);
        }
    }
}

/// Removes a folder of spilled tensors with its files. A failure is logged.
pub fn remove_folder(folder: &Path) {
    if let Err(error) = std::fs::remove_dir_all(folder)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!("{} was not removed: {error}", folder.display());
    }
}

impl Supervisor {
    /// The state of a daemon without tensors.
    ///
    /// # Errors
    /// `Io` when the system has no random numbers.
    pub(crate) fn new(sockets: Sockets) -> Result<Self> {
        let secret = random_bytes()?;
        let socket = sockets.listening.path().to_path_buf();
        let header =
            HandoverHeader { socket, secret, servers: 0, server: None, index_slots: 0, http: false, orphaned: false };
        Ok(Self { header, sockets, index: None, journal: Journal::default(), spill: None, manager: None })
    }

    /// The state from a handover. This process now owns the socket's file.
    pub(crate) fn from_handover(handover: Handover) -> Self {
        let Handover { header, mut sockets, journal, .. } = handover;
        sockets.listening.own();
        Self { header, sockets, index: None, journal, spill: None, manager: None }
    }

    /// The state that the service manager held.
    ///
    /// # Errors
    /// `Io` when the socket was removed and cannot be made again.
    pub(crate) fn from_manager(held: Held, manager: Option<&Manager>) -> Result<Self> {
        let Held { header, mut sockets, journal } = held;
        sockets.listening.own();
        if sockets.listening.mend()?
            && let Some(manager) = manager
        {
            manager.remove_listening();
        }
        tracing::info!("the service manager held {} tensors", journal.len());
        Ok(Self { header, sockets, index: None, journal, spill: None, manager: None })
    }

    /// The number of tensors.
    pub fn tensors(&self) -> usize {
        self.journal.len()
    }

    /// Tells the service manager that the daemon stops on request.
    pub(crate) fn report_stop(&self) {
        if let Some(manager) = &self.manager {
            manager.stopping();
        }
    }

    /// Starts a server and hands the state to it.
    pub(crate) fn start_server(&mut self, launch: &Launch, image: Image) -> Result<(Server, Receiver)> {
        self.header.servers += 1;
        if let Some(manager) = &mut self.manager {
            // Session numbers contain the number of the server, so it must not be used twice.
            manager.rewrite(&self.header, &self.journal)?;
        }
        let io = |error| Error::io("starting a server", &error);
        let (ours, theirs) = UnixStream::pair().map_err(io)?;
        let index = SharedIndex::create(INDEX_SLOTS)?;
        let mut server = Server::start(launch, image, theirs)?;
        let header = HandoverHeader { server: server.pid, index_slots: index.slots(), ..self.header.clone() };
        if let Err(error) = hand_over(&ours, header, &self.sockets, Some(index.fd()), &self.journal) {
            server.end();
            return Err(error);
        }
        self.index = Some(index);
        Ok((server, Receiver::new(ours)))
    }

    /// Adds an event to the journal here and at the service manager.
    pub(crate) fn apply(&mut self, event: Event, fds: Vec<OwnedFd>) -> Result<()> {
        if let Some(manager) = &mut self.manager {
            manager.append(&event, &fds);
        }
        let freed = self.journal.apply(event, fds)?;
        if let Some(manager) = &mut self.manager {
            manager.clean_up(&self.header, &self.journal, freed);
        }
        Ok(())
    }

    /// Replaces the socket and the lock by those that the server has made again.
    pub(crate) fn replace_listening(&mut self, fds: Vec<OwnedFd>) -> Result<()> {
        // Dropping the former one must not empty the lock's file: it may be the same file.
        self.sockets.listening.disown();
        self.sockets.listening = listening_from(&self.header.socket, &mut fds.into_iter())?;
        self.sockets.listening.own();
        if let Some(manager) = &self.manager {
            manager.remove_listening();
            manager.store_listening(&self.sockets.listening)?;
        }
        Ok(())
    }

    /// Keeps the socket for HTTP of the server, for the next one.
    pub(crate) fn add_http(&mut self, fds: Vec<OwnedFd>) -> Result<()> {
        let fd = fds.into_iter().next().ok_or_else(|| Error::corrupt("the socket for HTTP is missing"))?;
        if let Some(manager) = &self.manager {
            manager.store_http(fd.as_fd())?;
        }
        self.sockets.http = Some(fd.into());
        Ok(())
    }

    /// Stores the state at the service manager, and reports events to it from now on.
    ///
    /// # Errors
    /// `Io` when it does not listen.
    pub(crate) fn store_at(&mut self, mut manager: Manager) -> Result<()> {
        manager.store_all(&self.header, &self.sockets, &self.journal)?;
        self.manager = Some(manager);
        Ok(())
    }

    /// Hands the state to a successor. The server is dead.
    pub(crate) fn hand_to_successor(&mut self, successor: UnixStream) -> Result<()> {
        hand_over(&successor, self.header.clone(), &self.sockets, None, &self.journal)?;
        if !successor::confirms(successor) {
            return Err(Error::new(ErrorKind::Io, "the successor did not confirm the handover"));
        }
        self.sockets.listening.disown();
        Ok(())
    }
}
