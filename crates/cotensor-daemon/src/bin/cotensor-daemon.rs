//! The daemon without the other commands, for tests and small installations:
//! `cotensor-daemon [--device=DEVICE=MAX-BYTES] [--models=PROGRAM] [--listen=ADDRESS:PORT] SOCKET [MAX-BYTES [SPILL-FOLDER]]`.
//! `PROGRAM` is one that serves models ([`ModelsConfig`]); without it the daemon serves none.

use cotensor_core::{Device, Error, Result};
use cotensor_daemon::http::HttpConfig;
use cotensor_daemon::{Config, Launch, ModelsConfig, Role, Service};
use std::process::ExitCode;

const DEVICE_FLAG: &str = "--device=";
const MODELS_FLAG: &str = "--models=";
const LISTEN_FLAG: &str = "--listen=";

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
    let devices = arguments.extract_if(.., |argument| argument.starts_with(DEVICE_FLAG));
    config.max_device_bytes = devices.map(|argument| device(&argument)).collect::<Result<_>>()?;
    let program = arguments.extract_if(.., |argument| argument.starts_with(MODELS_FLAG)).last();
    config.models = program.map(|program| {
        let program = program.trim_start_matches(MODELS_FLAG).into();
        ModelsConfig::new(Launch::new(program, Vec::new()))
    });
    let listen = arguments.extract_if(.., |argument| argument.starts_with(LISTEN_FLAG)).last();
    let listen = listen.map(|listen| listen.trim_start_matches(LISTEN_FLAG).parse());
    let listen = listen.transpose().map_err(|_| Error::invalid("an address and a port expected"))?;
    let http = listen.map(|listen| HttpConfig { listen, ..HttpConfig::default() });
    match &arguments[..] {
        [socket] if !socket.starts_with('-') => config.socket = socket.into(),
        [socket, max, spill @ ..] if spill.len() <= 1 => {
            config.socket = socket.into();
            config.max_memory_bytes = max.parse().map_err(|_| Error::invalid("a number of bytes expected"))?;
            config.spill = spill.first().map(Into::into);
        }
        _ => {
            return Err(Error::invalid(
                "usage: cotensor-daemon [--device=DEVICE=MAX-BYTES] [--models=PROGRAM] [--listen=ADDRESS:PORT] SOCKET [MAX-BYTES [SPILL-FOLDER]]",
            ));
        }
    }
    cotensor_daemon::run(role, Service { config, http }, |_| {})
}

/// Parses `--device=DEVICE=MAX-BYTES`.
fn device(argument: &str) -> Result<(Device, u64)> {
    let budget = argument.trim_start_matches(DEVICE_FLAG);
    let wrong =
        || Error::invalid(format!("{budget:?}: a device and a number of bytes expected, such as cuda:0=1073741824"));
    let (device, bytes) = budget.split_once('=').ok_or_else(wrong)?;
    Ok((device.parse()?, bytes.parse().map_err(|_| wrong())?))
}
