//! The daemon: one store for all processes of a machine, served on a Unix socket and over HTTP.
//!
//! | module | contents, lowest layer first |
//! |---|---|
//! | `state` | sessions, segments, functions, broker, channels, the table of spilled files |
//! | `takeover` | restores the store of a former server, and resumes sessions |
//! | `handlers` | a function for each method of the protocol; `dispatch` registers them |
//! | `transport` | the Unix socket, HTTP |
//! | `processes` | the foreground process, the server, the replacement supervisor |
//!
//! `models` starts the model process, to which requests below `/v1` are forwarded, and ends it. This crate links no engine. It maps no
//! memory of clients but the header of a channel's ring, to wake its readers.
//!
//! A *session* is the state of one client: its leases, reservations, claims, slabs and functions. A *session lock* is a descriptor that the
//! client keeps as long as it has a session or leases: it tells a server without a connection to the client that the leases are in use. The
//! *index* is a sealed memfd in which clients see whether a name has a newer version. A *share* is the bytes of a device that a program may
//! use, as the broker divides it.

mod config;
mod daemon;
mod descriptors;
mod dispatch;
mod embed;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod handlers;
mod log_throttle;
mod models;
mod processes;
mod provider_tasks;
mod service;
mod spill_files;
mod start;
mod state;
mod takeover;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod timers;
mod transport;

pub use config::{Config, METADATA_BYTES, default_socket, share_of_memory};
pub use cotensor_supervisor::{Launch, Listening, Role};
pub use daemon::Daemon;
pub use embed::Embedded;
pub use models::ModelsConfig;
pub use processes::{run, run_as};
pub use service::{Ready, Service};
pub use transport::http;
