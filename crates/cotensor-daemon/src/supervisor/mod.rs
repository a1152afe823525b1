//! The daemon may die: a supervisor, which does next to nothing and therefore lives on, holds the listening sockets, every
//! published segment's descriptor and what there is to know about it, and starts the next server with them.
//!
//! ```text
//! supervisor --- socket pair (the server's standard input) --- server --- clients
//! ```
//!
//! The server tells of every change before anybody else can know of it; what it has sent arrives even if it dies right
//! after. When it dies, the supervisor ends the index, so that no client goes on answering itself from it, and starts the next
//! one, which verifies every seal and size. Clients meanwhile wait in the listening socket's queue. When the supervisor
//! dies, the server starts a new one and tells it everything; whoever starts the program again inherits it all. Only both
//! at the same time lose what there is, unless systemd holds it, too (`systemd.rs`).

mod channel;
mod journal;
mod link;
mod orphans;
mod process;
mod restore;
mod resume;
mod role;
mod run;
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
pub(crate) use journal::{Event, Member};
pub(crate) use link::SupervisorLink;
pub(crate) use orphans::Orphans;
pub(crate) use store_events::StoreEvents;
