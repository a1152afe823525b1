//! The daemon alone, for tests and for those who want no other command: `cotensor-daemon SOCKET [MAX-BYTES [SPILL-FOLDER]]`.

use cotensor_core::{Error, Result};
use cotensor_daemon::supervisor::{self, Role};
use cotensor_daemon::{Config, Service};
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
    let mut arguments: Vec<_> = std::env::args().skip(1).collect();
    let mut role = Role::Foreground;
    if let [.., flag, name] = &arguments[..]
        && flag == Role::FLAG
    {
        role = name.parse()?;
        arguments.truncate(arguments.len() - 2);
    }
    let mut config = Config::default();
    match &arguments[..] {
        [socket] if !socket.starts_with('-') => config.socket = socket.into(),
        [socket, max, spill @ ..] if spill.len() <= 1 => {
            config.socket = socket.into();
            config.max_memory_bytes = max.parse().map_err(|_| Error::invalid("a number of bytes expected"))?;
            config.spill = spill.first().map(Into::into);
        }
        _ => return Err(Error::invalid("usage: cotensor-daemon SOCKET [MAX-BYTES [SPILL-FOLDER]]")),
    }
    supervisor::run(role, Service { config, http: None }, |_| {})
}
