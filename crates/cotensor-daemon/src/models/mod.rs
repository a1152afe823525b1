//! The model process: one process of another program that runs the models of all clients. The daemon links no engine.
//!
//! The first request that needs it starts it. It serves HTTP on a Unix socket beside the daemon's socket, to which the daemon
//! forwards the requests below `/v1`. After its end, the next request starts another one.
//!
//! Clients name libraries of the fast engine, which their installations have. The process loads the best one, also while it runs: no request
//! waits for a replaced process, and references to models stay valid.

mod attempts;
mod config;
mod engine;
mod libraries;
mod orphan;
mod process;
mod service;

pub use config::ModelsConfig;
pub(crate) use libraries::checked;
pub(crate) use process::ModelProcess;
pub(crate) use service::Models;
