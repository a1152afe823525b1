//! The start of a server: it takes over the state of the supervisor that started it.

use crate::channel::{Handover, HandoverHeader, Receiver, Sockets};
use crate::launch::Launch;
use crate::link::{LinkState, SUPERVISOR_CHECK_INTERVAL, SupervisorLink};
use crate::process::{Parent, standard_input};
use crate::state::INDEX_SLOTS;
use crate::watch::{SupervisorProcess, Watch};
use cotensor_core::{Error, Result};
use cotensor_memory::SharedIndex;
use std::sync::Arc;

/// The state that a server takes over from its supervisor.
pub struct TakenOver {
    /// The link to that supervisor.
    pub link: Arc<SupervisorLink>,
    /// The sockets that this server serves.
    pub sockets: Sockets,
    /// The server's index, which the supervisor can write, too.
    pub index: SharedIndex,
    /// Replaces the supervisor when it dies.
    pub watch: Watch,
}

impl TakenOver {
    /// Receives the state from the supervisor that started this process.
    ///
    /// # Errors
    /// `Invalid` when no supervisor started this process; `Io`; `Corrupt` for messages that are not a handover.
    pub fn receive(launch: Launch) -> Result<Self> {
        let mut receiver = Receiver::new(standard_input()?);
        let Handover { header, sockets, index, journal } = receiver.take_over()?;
        let socket = receiver.socket;
        let supervisor = SupervisorProcess::Parent(Parent::at_the_other_end(&socket));
        let index = match index {
            Some(fd) => SharedIndex::open(fd, header.index_slots)?,
            None => SharedIndex::create(INDEX_SLOTS)?,
        };
        let io = |error| Error::io("taking over", &error);
        socket.set_write_timeout(Some(SUPERVISOR_CHECK_INTERVAL)).map_err(io)?;
        let header = HandoverHeader { server: Some(std::process::id()), index_slots: 0, ..header };
        let (copies, to_supervisor) = (sockets.duplicate(&header)?, socket.try_clone().map_err(io)?);
        let state = LinkState::new(copies, journal, to_supervisor, supervisor.pid());
        let link = Arc::new(SupervisorLink::new(launch, header, state));
        let watch = Watch::new(Arc::clone(&link), socket, supervisor);
        Ok(Self { link, sockets, index, watch })
    }
}
