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
//!
//! A *takeover* is the start of the next server with all tensors. A supervisor that the user starts on the socket of a running daemon is
//! its *successor*. An *event* is a change of the journal. The crate knows no request, handler or model. `run_servers.rs` starts servers;
//! the daemon restores and resumes (its `takeover/`), and clients reconnect (`store/` of cotensor-client).

mod channel;
mod follow;
mod foreground;
mod journal;
mod journal_file;
mod launch;
mod link;
mod listening;
mod process;
mod run_servers;
mod signals;
mod state;
mod successor;
mod systemd;
mod take_over;
mod watch;

pub use channel::Sockets;
pub use follow::HEAP_TRIM_DELAY;
pub use foreground::Prepared;
pub use journal::{Entry, Event, Journal, Segment, SessionClient, SpillFile};
pub use launch::{Image, Launch, Role};
pub use link::{LinkState, SegmentFile, SupervisorLink};
pub use listening::{Listening, SOCKET_CHECK_INTERVAL};
pub use signals::{StopSignals, stop_this_process};
pub use state::{INDEX_SLOTS, Supervisor, remove_folder};
pub use take_over::TakenOver;
pub use watch::Watch;
