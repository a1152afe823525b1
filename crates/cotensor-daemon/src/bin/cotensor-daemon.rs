//! The daemon and its keeper alone, for tests and for those who want no other command: `cotensor-daemon SOCKET`.
//!
//! The keeper starts the server as `cotensor-daemon SOCKET server`, and the server, should the keeper die, the next
//! keeper as `cotensor-daemon SOCKET keeper`.

use cotensor_core::{Error, Result};
use cotensor_daemon::{Config, keeper};
use std::process::ExitCode;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cotensor-daemon: {error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let socket = arguments.next().ok_or_else(|| Error::invalid("usage: cotensor-daemon SOCKET"))?;
    let role = arguments.next();
    let again = |role: &str| [socket.clone(), role.into()];
    let launch = keeper::Launch::this_program(again("server"), again("keeper"))?;
    let config = Config { socket: socket.clone().into(), ..Config::default() };
    match role.as_deref().and_then(std::ffi::OsStr::to_str) {
        None => keeper::run(&config, &launch),
        Some("server") => keeper::serve(config, &launch),
        Some("keeper") => keeper::resume(&launch),
        Some(other) => Err(Error::invalid(format!("{other:?} is neither server nor keeper"))),
    }
}
