//! The daemon: one store for all processes of a machine, served on a Unix socket and over HTTP.

mod broker;
mod channels;
mod config;
mod connection;
mod daemon;
mod descriptors;
mod dispatch;
mod embed;
mod functions;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod handlers;
pub mod http;
mod idle;
mod index;
mod models;
mod refusals;
mod segment;
mod serve;
mod service;
mod session;
mod signals;
mod socket;
mod spill;
mod start;
pub mod supervisor;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use config::{Config, METADATA_BYTES, default_socket, share_of_memory};
pub use daemon::Daemon;
pub use embed::Embedded;
pub use models::ModelsConfig;
pub use service::{Ready, Service};
pub use socket::Listening;
