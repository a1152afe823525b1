//! The model process: one process of another program that runs the models of all clients. The daemon links no engine.
//!
//! The first request that needs it starts it. It serves HTTP on a Unix socket beside the daemon's socket, to which the daemon
//! forwards the requests below `/v1`. After its end, the next request starts another one.

mod attempts;
mod config;
mod former;
mod process;
mod service;

pub use config::ModelsConfig;
pub(crate) use process::ModelProcess;
pub(crate) use service::Models;
