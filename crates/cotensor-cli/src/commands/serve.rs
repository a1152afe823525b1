use super::{mib_to_bytes, print_json};
use crate::args::ServeArgs;
use cotensor::core::{Error, Result};
use cotensor_daemon::{Config, Daemon};
use serde::Serialize;
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// What a program that started the daemon wants to know.
#[derive(Serialize)]
struct Ready<'a> {
    socket: &'a std::path::Path,
    pid: u32,
    epoch: u64,
}

pub(crate) fn serve(args: &ServeArgs) -> Result<()> {
    let level = if args.verbose { "debug" } else { args.log.as_deref().unwrap_or("info") };
    let filter = EnvFilter::try_new(level).map_err(|error| Error::invalid(error.to_string()).in_field("--log"))?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    log.with_ansi(std::io::stderr().is_terminal()).init();
    let mut config = Config::default();
    if let Some(socket) = &args.socket {
        config.socket.clone_from(socket);
    }
    if let Some(mib) = args.max_memory {
        config.max_memory_bytes = mib_to_bytes(mib, "--max-memory")?;
    }
    let ready = |daemon: &Daemon| {
        let config = daemon.config();
        tracing::info!("listening on {}", config.socket.display());
        let ready = Ready { socket: &config.socket, pid: std::process::id(), epoch: daemon.epoch() };
        // Whoever started the daemon may not be listening; the daemon serves all the same.
        if args.json
            && let Err(error) = print_json(&ready)
        {
            tracing::warn!("{error}");
        }
    };
    cotensor_daemon::run(config, ready)
}
