//! The daemon: one store for all processes of a machine, served on a Unix socket and over HTTP.

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
