use super::{mib_to_bytes, print_json};
use crate::args::ServeArgs;
use crate::launch::Program;
use cotensor::core::{Error, Result};
use cotensor_daemon::http::{HttpConfig, default_port};
use cotensor_daemon::{Config, Ready, Service, keeper};
use serde::Serialize;
use std::io::IsTerminal;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use tracing_subscriber::EnvFilter;

/// What a program that started the daemon wants to know.
#[derive(Serialize)]
struct Started<'a> {
    socket: &'a Path,
    /// The process to end to end the daemon: this one.
    pid: u32,
    /// The one that serves; another takes its place should it die.
    server: Option<u32>,
    epoch: u64,
    http: Option<SocketAddr>,
    token_file: Option<&'a Path>,
    /// Tensors that a daemon before this one left.
    resumed: usize,
}

pub(crate) fn serve(args: &ServeArgs, program: &Program) -> Result<()> {
    let level = if args.verbose { "debug" } else { args.log.as_deref().unwrap_or("info") };
    let filter = EnvFilter::try_new(level).map_err(|error| Error::invalid(error.to_string()).in_field("--log"))?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    log.with_ansi(std::io::stderr().is_terminal()).init();
    let mut config = Config { spill: args.spill.clone(), ..Config::default() };
    if let Some(socket) = &args.socket {
        config.socket.clone_from(socket);
    }
    if let Some(mib) = args.max_memory {
        config.max_memory_bytes = mib_to_bytes(mib, "--max-memory")?;
    }
    if let Some(mib) = args.max_client_memory {
        config.max_client_bytes = mib_to_bytes(mib, "--max-client-memory")?;
    }
    if let Some(mib) = args.max_spill {
        config.max_spill_bytes = mib_to_bytes(mib, "--max-spill")?;
    }
    let http = args.listen.as_deref().map(address).transpose()?;
    let http = http.map(|listen| HttpConfig { listen, token_file: args.token_file.clone(), ..HttpConfig::default() });
    keeper::run_as(program.again()?, args.role, Service { config, http }, |ready| announce(&ready, args.json))
}

fn announce(ready: &Ready<'_>, json: bool) {
    let socket = &ready.config.socket;
    tracing::info!("listening on {}", socket.display());
    if let Some(http) = ready.http {
        tracing::info!("HTTP on http://{http}");
    }
    if let Some(file) = &ready.token_file {
        tracing::info!("HTTP clients need the token in {}", file.display());
    }
    if ready.resumed > 0 {
        tracing::info!("{} tensors are there already", ready.resumed);
    }
    let started = Started {
        socket,
        pid: std::process::id(),
        server: ready.server,
        epoch: ready.epoch,
        http: ready.http,
        token_file: ready.token_file.as_deref(),
        resumed: ready.resumed,
    };
    // Whoever started the daemon may not be listening; the daemon serves all the same.
    if json && let Err(error) = print_json(&started) {
        tracing::warn!("{error}");
    }
}

/// `ADDRESS:PORT`, one of the two, or nothing: loopback, and the port of this rank.
fn address(text: &str) -> Result<SocketAddr> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    if let Ok(port) = text.parse::<u16>() {
        return Ok((Ipv4Addr::LOCALHOST, port).into());
    }
    let host: IpAddr = match text {
        "" => Ipv4Addr::LOCALHOST.into(),
        text => text.parse().map_err(|_| {
            Error::invalid(format!("{text:?} is no address such as 127.0.0.1:2537")).in_field("--listen")
        })?,
    };
    Ok((host, default_port()?).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_may_leave_out_a_part() {
        assert_eq!(address("0.0.0.0:80").unwrap().to_string(), "0.0.0.0:80");
        assert_eq!(address("[::1]:80").unwrap().to_string(), "[::1]:80");
        assert_eq!(address("8080").unwrap().to_string(), "127.0.0.1:8080");
        assert!(address("::1").unwrap().is_ipv6() && address("").unwrap().ip().is_loopback());
        for wrong in ["localhost", "1.2.3", "70000", "1.2.3.4:", ":80"] {
            assert_eq!(address(wrong).unwrap_err().field(), Some("--listen"), "{wrong}");
        }
    }
}
