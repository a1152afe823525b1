//! The processes of a daemon: the foreground process, a server, and a replacement supervisor.

mod run;
mod server;

pub use run::{run, run_as};
