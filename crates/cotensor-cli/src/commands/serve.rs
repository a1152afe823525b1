use super::daemon_processes::Process;
use crate::args::serve_values::{address, filter};
use crate::args::{DaemonOptions, ServeArgs};
use crate::launch::Program;
use crate::log::Log;
use crate::output::print_json;
use crate::terminal::takes_colours;
use cotensor::core::waiting::{WaitReport, set_wait_reporter};
use cotensor::core::{Error, ErrorKind, Result};
use cotensor_client::connect_unix;
use cotensor_daemon::http::HttpConfig;
use cotensor_daemon::{Config, Launch, ModelsConfig, Ready, Role, Service, default_socket, run_as, share_of_memory};
use rustix::process::{Signal, getpid, kill_process};
use serde::Serialize;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// The budget of tensors without the option, in percent of the memory that the machine or the control group has.
const DEFAULT_SHARE: u64 = 50;

/// The time for a daemon in the background to answer.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The JSON object that `--json` prints when clients can connect.
#[derive(Serialize)]
struct Started<'a> {
    socket: &'a Path,
    /// This process, which supervises the server. SIGTERM to it ends the daemon.
    pid: u32,
    /// The server process; replaced when it dies.
    server: Option<u32>,
    epoch: u64,
    http: Option<SocketAddr>,
    token_file: Option<&'a Path>,
    /// Number of tensors taken over from a previous daemon.
    resumed: usize,
}

pub(crate) fn serve(args: &ServeArgs, program: &Program) -> Result<()> {
    if args.detach && !args.detached && args.role == Role::Foreground {
        return detach(args, program);
    }
    let filter = filter(if args.verbose { "debug" } else { args.log.as_deref().unwrap_or("info") })?;
    let log = Log::to(std::io::stderr()).map_err(|error| Error::io("starting the log", &error))?;
    let lines = tracing_subscriber::fmt::layer().with_writer(log.clone()).with_target(false);
    tracing_subscriber::registry().with(lines.with_ansi(takes_colours(&std::io::stderr())).with_filter(filter)).init();
    set_wait_reporter(Some(Arc::new(|wait: &WaitReport| {
        if wait.is_expected { tracing::info!("{}", wait.text) } else { tracing::warn!("{}", wait.text) }
    })));
    let mut config = Config { spill: args.spill.clone(), sharing: args.sharing.config(), ..Config::default() };
    if let Some(socket) = &args.socket {
        config.socket.clone_from(socket);
    }
    if let Some(bytes) = args.max_memory.or_else(|| share_of_memory(DEFAULT_SHARE)) {
        config.max_memory_bytes = bytes;
    }
    for (devices, bytes) in &args.max_device_memory {
        config.max_device_bytes.extend(devices.iter().map(|device| (*device, *bytes)));
    }
    if let Some(bytes) = args.max_client_memory {
        config.max_client_bytes = bytes;
    }
    if let Some(bytes) = args.max_spill {
        config.max_spill_bytes = bytes;
    }
    config.idle_exit = args.idle_exit;
    if args.seal_all {
        config.small_bytes_max = 0;
    }
    config.models = Some(models(args, program)?);
    let http = args.listen.as_deref().map(address).transpose()?;
    let http = http.map(|listen| HttpConfig {
        listen,
        token_file: args.token_file.clone(),
        hosts: args.allow_host.clone(),
        ..HttpConfig::default()
    });
    if let Some(pid) = args.end_with
        && args.role != Role::Server
    {
        end_with(pid, args.role)?;
    }
    let service = Service { config, http };
    let outcome = run_as(program.again()?, args.role, service, |ready| announce(&ready, args.json));
    log.flush_queue();
    outcome
}

/// Ends this process, which supervises the server, as SIGTERM does, when process `pid` has ended.
fn end_with(pid: u32, role: Role) -> Result<()> {
    let process = Process::open(pid);
    // A supervisor that replaces another one ends the server, too.
    if process.is_none() && role == Role::Foreground {
        return Err(Error::invalid(format!("--end-with: no process {pid} runs here")));
    }
    let wait = move || {
        process.iter().for_each(Process::wait);
        tracing::info!("process {pid} has ended");
        // It fails for a process without a handler of signals only.
        let _ = kill_process(getpid(), Signal::TERM);
    };
    let thread = std::thread::Builder::new().name("end-with".to_owned()).spawn(wait);
    thread.map(drop).map_err(|error| Error::io("starting a thread", &error))
}

/// How the daemon starts `serve-models`.
fn models(args: &ServeArgs, program: &Program) -> Result<ModelsConfig> {
    let (program, mut arguments) = program.command()?;
    let ttl = args.model_ttl.as_secs_f64().to_string();
    // A model process whose daemon ends must not start another daemon.
    arguments.extend(["serve-models", "--autostart", "false", "--model-ttl", &ttl].map(Into::into));
    if args.no_result_cache {
        arguments.push("--no-result-cache".into());
    }
    Ok(ModelsConfig::new(Launch::new(program, arguments)))
}

/// Runs the same command in the background, and shows its status.
fn detach(args: &ServeArgs, program: &Program) -> Result<()> {
    let socket = args.socket.clone().unwrap_or_else(default_socket);
    if connect_unix(&socket).is_ok() {
        return Err(Error::new(ErrorKind::Conflict, "another daemon is running here").in_file(&socket));
    }
    let mut arguments = program.arguments.clone();
    arguments.push("--detached".into());
    if !args.json {
        arguments.push("--json".into());
    }
    let folder = std::env::current_dir().map_err(|error| Error::io("finding the working directory", &error))?;
    program.as_daemon()?.start(&socket, &arguments, &folder, START_TIMEOUT)?;
    super::status::show(&DaemonOptions { socket: Some(socket), json: args.json })
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
        tracing::info!("took over {} tensors of the previous daemon", ready.resumed);
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
    // A closed standard output does not stop the daemon.
    if json && let Err(error) = print_json(&started) {
        tracing::warn!("{error}");
    }
}
