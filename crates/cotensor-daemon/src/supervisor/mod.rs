//! A supervisor process keeps the daemon's state while servers start and end.
//!
//! ```text
//! supervisor --- socket pair (the server's standard input) --- server --- clients
//! ```
//!
//! The supervisor holds the listening sockets, the descriptors of all published segments and the journal. It does
//! little, so it rarely fails. The server reports each event to it before a client can depend on the event; a report
//! arrives even if the server dies right after sending it.
//!
//! When the server dies, the supervisor invalidates the shared index, so that no client answers lookups from it, and
//! starts the next server, which verifies the seals and the size of each segment. Meanwhile clients wait in the backlog
//! of the listening socket. When the supervisor dies, the server starts another one and hands the journal to it; the
//! next program that is started on the socket takes everything over. The state is lost only if both die at once and
//! systemd does not hold it (`systemd.rs`).

mod channel;
mod follow;
mod journal_file;
mod link;
mod process;
mod run_servers;
mod state;
mod successor;
mod systemd;
mod watch;

pub(crate) use channel::{CHANNEL_TIMEOUT, HandoverHeader, Receiver, Sockets};
pub(crate) use link::{LinkState, SUPERVISOR_CHECK_INTERVAL, SupervisorLink};
pub(crate) use process::{Parent, Server, standard_input};
pub(crate) use state::SupervisorState;
pub(crate) use successor::{SuccessorSocket, inherit};
pub(crate) use systemd::Manager;
pub(crate) use watch::Supervisor;
