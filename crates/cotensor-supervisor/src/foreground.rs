//! The start of a supervisor: with a new daemon, or with the state of a former one.

use crate::channel::{Receiver, Sockets};
use crate::launch::Launch;
use crate::listening::Listening;
use crate::process::{Server, standard_input};
use crate::state::Supervisor;
use crate::successor::{SuccessorSocket, inherit};
use crate::systemd::Manager;
use cotensor_core::{ErrorKind, Result};
use cotensor_memory::process::LockTable;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

/// What the daemon adds to the state that a supervisor starts with.
pub struct Prepared<T> {
    /// The folder of spilled tensors, which is removed when the daemon stops.
    pub spill_folder: Option<PathBuf>,
    /// A result for the caller of [`Supervisor::open`].
    pub value: T,
}

impl Supervisor {
    /// The supervisor of the daemon at `socket`: of the state that the service manager held, of a daemon whose first supervisor was
    /// killed, or of a new daemon. `prepare` may fail before anything is taken over, so that a mistake in it loses no tensors.
    ///
    /// # Errors
    /// Those of `prepare`; `Conflict` while another daemon is running; `Invalid` for a service manager's socket at another path and for
    /// wrong environment variables; `Io`.
    pub fn open<T>(socket: &Path, prepare: impl FnOnce(&mut Sockets) -> Result<Prepared<T>>) -> Result<(Self, T)> {
        let (mut manager, held) = Manager::find()?;
        let activated = manager.as_mut().and_then(|manager| manager.activated.take());
        let is_activated = activated.is_some();
        let http = manager.as_mut().and_then(|manager| manager.activated_http.take());
        let (mut this, prepared) = match (held.filter(|held| held.header.socket == socket), activated) {
            (Some(mut held), _) => {
                held.sockets.http = held.sockets.http.take().or(http);
                let prepared = prepare(&mut held.sockets)?;
                (Self::from_manager(held, manager.as_ref())?, prepared)
            }
            (None, Some(listener)) => Self::with_sockets(Listening::activated(listener, socket)?, http, prepare)?,
            (None, None) => Self::new_or_taken_over(socket, prepare)?,
        };
        if is_activated {
            this.sockets.listening.leave_file();
        }
        this.spill = prepared.spill_folder;
        if let Some(manager) = manager {
            this.store_at(manager)?;
        }
        Ok((this, prepared.value))
    }

    /// The state of a new daemon, or of one whose first supervisor was killed.
    fn new_or_taken_over<P>(socket: &Path, prepare: impl FnOnce(&mut Sockets) -> Result<P>) -> Result<(Self, P)> {
        match Listening::bind(socket) {
            Ok(listening) => Self::with_sockets(listening, None, prepare),
            Err(refused) if refused.kind() == ErrorKind::Conflict => {
                let taken = inherit(socket, prepare)?;
                taken.map(|(handover, prepared)| (Self::from_handover(handover), prepared)).ok_or(refused)
            }
            Err(error) => Err(error),
        }
    }

    /// The state of a new daemon. `http` is the socket for HTTP that a service manager has made.
    fn with_sockets<P>(
        listening: Listening,
        http: Option<TcpListener>,
        prepare: impl FnOnce(&mut Sockets) -> Result<P>,
    ) -> Result<(Self, P)> {
        let mut this = Self::new(Sockets { listening, locks: LockTable::create()?, http })?;
        let prepared = prepare(&mut this.sockets)?;
        Ok((this, prepared))
    }

    /// Replaces the supervisor of the daemon at `socket`, which died, until a signal or a successor ends this process. The server that
    /// started it hands the state over on standard input.
    ///
    /// # Errors
    /// `Invalid` when no server started this process; as [`run`](Self::run).
    pub fn replace(socket: &Path, spill_folder: Option<PathBuf>, launch: &Launch) -> Result<()> {
        let mut receiver = Receiver::new(standard_input()?);
        let handover = receiver.take_over()?;
        let server = Server { child: None, pid: handover.header.server };
        let successors = SuccessorSocket::wait(socket)?;
        let mut this = Self::from_handover(handover);
        this.spill = spill_folder;
        this.run_servers(launch, Some((server, receiver)), Some(successors), |_, _| {})
    }
}
