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
mod journal;
mod link;
mod orphans;
mod process;
mod restore;
mod resume;
mod role;
mod run;
mod run_servers;
mod server;
mod state;
mod store_events;
mod successor;
mod systemd;
mod watch;

pub use process::Launch;
pub use role::Role;
pub use run::{run, run_as};

#[cfg(feature = "fuzzing")]
pub(crate) use journal::Journal;
pub(crate) use journal::{Event, SessionClient};
pub(crate) use link::SupervisorLink;
pub(crate) use orphans::Orphans;
pub(crate) use process::{Image, stop_this_process};
pub(crate) use resume::Resumed;
pub(crate) use store_events::StoreEvents;
