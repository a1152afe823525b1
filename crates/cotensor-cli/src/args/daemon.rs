//! Arguments of the daemon's commands.

use super::SharingArgs;
use super::units::{SIZE, TIME, YEAR, budget, size, time, time_from};
use crate::environment;
use clap::builder::BoolishValueParser;
use clap::{ArgAction, Args, ValueEnum};
use cotensor::core::Device;
use cotensor_client::settings;
use cotensor_formats::Format;
use std::path::PathBuf;
use std::time::Duration;

/// Options of every command that connects to the daemon.
#[derive(Args)]
pub(crate) struct Client {
    /// Unix socket of the daemon [default: cotensor.sock in /tmp/cotensor-UID].
    #[arg(long, env = settings::SOCKET.variable, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Whether to start a daemon when none answers.
    #[arg(
        long,
        env = settings::AUTOSTART.variable,
        value_name = "BOOL",
        default_value_t = true,
        value_parser = BoolishValueParser::new(),
        action = ArgAction::Set,
        hide_possible_values = true
    )]
    pub(crate) autostart: bool,
    /// Print one JSON object on standard output and nothing else.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Run the daemon: one copy of every tensor for all processes of this user, until SIGTERM or Ctrl-C.
///
/// Commands and clients start a daemon in the background when none answers, so that this command is needed for its options
/// only.
///
/// This process supervises a server process. When the server dies, a new one takes over all tensors, leases and names.
/// A second daemon on the same socket is refused. When this process is killed, the server continues while clients are
/// connected, and the next `cotensor serve` takes over. `cotensor service install` lets systemd run it.
#[derive(Args)]
pub(crate) struct ServeArgs {
    /// Unix socket to listen on, created with mode 0600 [default: cotensor.sock in /tmp/cotensor-UID].
    #[arg(long, env = settings::SOCKET.variable, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Memory budget of all tensors, such as 4GiB, a share of the machine's memory, such as 75%, or none; each tensor
    /// counts 1 KiB more than its size [default: 50%]. When the budget is exhausted, unleased tensors are evicted; then
    /// publishing fails with an error that lists the holders.
    #[arg(long, env = settings::MAX_MEMORY.variable, value_name = SIZE, value_parser = budget)]
    pub(crate) max_memory: Option<u64>,
    /// Device whose memory clients may share, with its budget, such as cuda:0=40GiB; repeatable [default: host
    /// memory only]. The budget of a device counts the tensors of all clients there. cuda=40GiB is for the device of RANK, or for
    /// each of GPUS_PER_NODE devices.
    #[arg(
        long,
        env = settings::MAX_DEVICE_MEMORY.variable,
        value_name = "DEVICE=SIZE",
        value_delimiter = ',',
        value_parser = device_memory
    )]
    pub(crate) max_device_memory: Vec<(Vec<Device>, u64)>,
    /// Memory that one client may lease and reserve, such as 4GiB, on all devices together [default: no limit].
    #[arg(long, env = settings::MAX_CLIENT_MEMORY.variable, value_name = SIZE, value_parser = size)]
    pub(crate) max_client_memory: Option<u64>,
    /// Give every tensor sealed memory of its own, which its producer cannot change. Without this option, the producer
    /// of a tensor up to 256 KiB can still write it. With it, a small tensor takes a descriptor and whole pages (4
    /// KiB).
    #[arg(long)]
    pub(crate) seal_all: bool,
    /// Serve HTTP: JSON-RPC, tensor bytes, health, metrics and the dashboard. Requests need the token that `cotensor
    /// token` prints; `cotensor dashboard` opens the dashboard [default without a value: 127.0.0.1, port 2537 +
    /// RANK].
    #[arg(long, env = settings::LISTEN.variable, value_name = "ADDRESS:PORT", num_args = 0..=1, default_missing_value = "", value_parser = super::serve_values::listen_argument)]
    pub(crate) listen: Option<String>,
    /// Folder for spilled tensors. When memory is needed, unleased tensors are written to files of this daemon instead
    /// of being evicted; a lookup reads them back. The files are removed when the daemon stops.
    #[arg(long, env = settings::SPILL.variable, value_name = "DIR")]
    pub(crate) spill: Option<PathBuf>,
    /// Maximum size of the spilled files, such as 40GiB [default: the free disk space].
    #[arg(long, env = settings::MAX_SPILL.variable, value_name = SIZE, value_parser = size)]
    pub(crate) max_spill: Option<u64>,
    /// File that contains the token, readable only by its owner. Requests of every user with this token are served;
    /// with a generated token, requests over loopback must come from this user's processes [default: generated
    /// in the user's state folder; beside a socket at another place than the default, as PATH.token].
    #[arg(long, env = settings::TOKEN_FILE.variable, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Host name by which HTTP clients may address the daemon, besides IP addresses and localhost; repeatable.
    /// Requests with other names are refused, because another site's page could resolve its own name to this
    /// machine.
    #[arg(
        long,
        env = settings::ALLOW_HOST.variable,
        value_name = "NAME",
        value_delimiter = ',',
        value_parser = host
    )]
    pub(crate) allow_host: Vec<String>,
    /// Log level on standard error: off, error, warn, info, debug, trace, or a list such as
    /// `warn,cotensor_daemon=debug,cotensor_supervisor=debug`.
    #[arg(long, env = settings::LOG.variable, value_name = "LEVEL", value_parser = super::serve_values::log_argument)]
    pub(crate) log: Option<String>,
    /// Log every session and call; the same as --log debug.
    #[arg(long, short, conflicts_with = "log")]
    pub(crate) verbose: bool,
    /// Print one JSON object on standard output when clients can connect: {"socket", "pid", "server", "epoch", "http",
    /// "token_file", "resumed"}. A SIGTERM to the process `pid` ends the daemon.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) sharing: SharingArgs,
    /// Run in the background, and return when clients can connect. The log is beside the socket (`cotensor logs`).
    #[arg(short, long)]
    pub(crate) detach: bool,
    /// This process was started in the background.
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
    /// End after this time without clients and tensors [default: never; 10min for a daemon that a client started].
    #[arg(long, env = settings::IDLE_EXIT.variable, value_name = TIME, value_parser = time_from(Duration::from_secs(1), YEAR, "from 1s to 365d"))]
    pub(crate) idle_exit: Option<Duration>,
    /// End when this process ends, such as the node of a cluster to which the daemon belongs.
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) end_with: Option<u32>,
    /// Time without requests after which a model is unloaded; 0 for never. The daemon serves models below /v1 of its HTTP address, and
    /// starts a process for them at the first request.
    #[arg(long, env = settings::MODEL_TTL.variable, default_value = "10min", value_name = TIME, value_parser = time_from(Duration::ZERO, YEAR, "of at most 365d"))]
    pub(crate) model_ttl: Duration,
    /// Compute the embedding of each text of a request again, also of one that was embedded before.
    #[arg(long)]
    pub(crate) no_result_cache: bool,
    /// Role of this process; set by the daemon for the processes that it starts.
    #[arg(long, hide = true, default_value = "foreground")]
    pub(crate) role: cotensor_daemon::Role,
}

/// Parses a device, or `cuda` for those of the rank, and the budget of each.
fn device_memory(text: &str) -> Result<(Vec<Device>, u64), String> {
    let wrong = || "expected a device and its budget, such as cuda:0=40GiB".to_owned();
    let (device, budget) = text.split_once('=').ok_or_else(wrong)?;
    let budget = size(budget).map_err(|reason| format!("{device}: {reason}"))?;
    if device == "cuda" {
        let devices = cotensor_client::devices_of_daemon().map_err(|error| error.to_string())?;
        return Ok((devices, budget));
    }
    let device = device.parse::<Device>().map_err(|error| error.to_string())?;
    if device.is_host() {
        return Err("use --max-memory for the budget of host memory".to_owned());
    }
    Ok((vec![device], budget))
}

/// Parses a host name as in a Host header, without a port.
fn host(name: &str) -> Result<String, String> {
    let part =
        |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    if name.split('.').all(part) {
        Ok(name.to_owned())
    } else {
        Err("expected a host name such as tensors.example, without scheme and port".to_owned())
    }
}

/// File format of tensors.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum FileFormat {
    /// One tensor in NumPy's format.
    Npy,
    /// Any number of named tensors.
    Safetensors,
    /// Only the elements, in row-major order, little-endian.
    Raw,
}

impl From<FileFormat> for Format {
    fn from(format: FileFormat) -> Self {
        match format {
            FileFormat::Npy => Format::Npy,
            FileFormat::Safetensors => Format::Safetensors,
            FileFormat::Raw => Format::Raw,
        }
    }
}

/// Publish the tensors of a file. They stay until they are removed or evicted.
///
/// The file is read directly into the memory that other processes map. An existing name gets a new version; readers of
/// the old version keep it.
#[derive(Args)]
#[command(after_help = "Examples:\n  cotensor put query query.npy\n  cotensor put --all bert/ model.safetensors\n  \
    cotensor put head model.safetensors --tensor classifier.weight\n  \
    cotensor put noise noise.bin --dtype float32 --shape 16,1024\n  cat x.npy | cotensor put x - --format npy")]
pub(crate) struct PutArgs {
    #[command(flatten)]
    pub(crate) client: Client,
    /// Name of the tensor; with --all, the prefix of every name.
    pub(crate) name: String,
    /// .npy, .safetensors, .raw or .bin file, or - for standard input.
    pub(crate) file: PathBuf,
    /// Format of the file, if its name has no known extension.
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<FileFormat>,
    /// Publish every tensor of the file as NAME followed by its name in the file.
    #[arg(long, conflicts_with = "tensor")]
    pub(crate) all: bool,
    /// Tensor of the file to publish, if the file contains several.
    #[arg(long, value_name = "NAME")]
    pub(crate) tensor: Option<String>,
    /// Element type of a raw file, such as float32 or BF16.
    #[arg(long, requires = "shape")]
    pub(crate) dtype: Option<String>,
    /// Shape of a raw file, such as 2,768; empty for a scalar.
    #[arg(long, requires = "dtype", value_name = "DIMS")]
    pub(crate) shape: Option<String>,
    /// Kind of the tensor, such as text_embedding.
    #[arg(long, default_value = "other")]
    pub(crate) kind: String,
    /// Time to compute the tensor again. Eviction starts with the tensor whose time per byte is lowest.
    #[arg(long, default_value = "1h", value_name = TIME, value_parser = time_from(Duration::ZERO, 30 * YEAR, "of at most 30 years, such as 10min"))]
    pub(crate) recompute: Duration,
    /// Longest time to keep the tensor while no program holds it, such as 10min; it is freed then. Each holder ends the time [default: until
    /// the tensor is removed or evicted].
    #[arg(long, value_name = TIME, value_parser = time_from(Duration::from_millis(1), 30 * YEAR, "from 1ms to 30 years, such as 10min"))]
    pub(crate) keep: Option<Duration>,
}

/// Write a tensor to a file.
#[derive(Args)]
#[command(after_help = "Examples:\n  cotensor get query query.npy\n  cotensor get --all bert/ model.safetensors\n  \
    cotensor get query - | python3 -c \\\n    \
    'import io, numpy; print(numpy.load(io.BytesIO(open(0, \"rb\").read())))'")]
pub(crate) struct GetArgs {
    #[command(flatten)]
    pub(crate) client: Client,
    /// Name of the tensor; with --all, the prefix of the names.
    pub(crate) name: String,
    /// .npy, .safetensors, .raw or .bin file, or - for standard output. An existing file is replaced atomically.
    pub(crate) file: PathBuf,
    /// Format of the file, if its name has no known extension [default for -: npy].
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<FileFormat>,
    /// Write every tensor whose name starts with NAME, named by the rest of its name (.safetensors only).
    #[arg(long)]
    pub(crate) all: bool,
}

/// Options of the commands for the daemon itself, which start none.
#[derive(Args)]
pub(crate) struct DaemonOptions {
    /// Unix socket of the daemon [default: cotensor.sock in /tmp/cotensor-UID].
    #[arg(long, env = settings::SOCKET.variable, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Print one JSON object on standard output and nothing else.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show whether the daemon runs, its processes, memory and clients. Exit code 1 when no daemon runs.
#[derive(Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) daemon: DaemonOptions,
}

/// End the daemon. Its tensors are freed; clients keep those that they have mapped.
#[derive(Args)]
pub(crate) struct StopArgs {
    #[command(flatten)]
    pub(crate) daemon: DaemonOptions,
}

/// Print the log of a daemon that was started in the background.
///
/// A daemon in the foreground logs to its standard error, one under systemd to the journal (`journalctl --user -u cotensor`).
#[derive(Args)]
pub(crate) struct LogsArgs {
    /// Unix socket of the daemon [default: cotensor.sock in /tmp/cotensor-UID].
    #[arg(long, env = settings::SOCKET.variable, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Print further lines as they are written, until Ctrl-C.
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Number of lines from the end of the log.
    #[arg(short = 'n', long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub(crate) lines: u32,
}

/// The order of a list of tensors.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TensorOrder {
    Name,
    Size,
    Age,
    Hits,
    Leases,
}

/// List tensors.
#[derive(Args)]
pub(crate) struct LsArgs {
    #[command(flatten)]
    pub(crate) client: Client,
    /// Prefix of the names.
    #[arg(default_value = "")]
    pub(crate) prefix: String,
    /// Order of the tensors; the largest number first.
    #[arg(long, default_value = "name", value_name = "ORDER")]
    pub(crate) sort: TensorOrder,
    /// Print names only.
    #[arg(short, long, conflicts_with_all = ["long", "json"])]
    pub(crate) quiet: bool,
    /// Print kind, producer, device and holders, too.
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) long: bool,
    /// Maximum number of tensors to list.
    #[arg(long, default_value_t = 10_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) limit: u32,
}

/// Show all versions of tensors, or the daemon's counters.
#[derive(Args)]
pub(crate) struct StatArgs {
    #[command(flatten)]
    pub(crate) client: Client,
    /// Names of tensors; without a name, the daemon's counters are shown.
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
}

/// List the holders of tensors: names, processes and numbers of leases, and the control group whose memory limit counts the tensor.
///
/// The control group is that of the process that made the memory: the producer, or the daemon for uploads over HTTP and for tensors that it
/// read back from disk.
///
/// A process is listed under the holder name of its first lease; its further leases share that one.
#[derive(Args)]
pub(crate) struct WhoArgs {
    #[command(flatten)]
    pub(crate) client: Client,
    /// Names of tensors.
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
}

/// Remove tensors. A name is free at once; the memory is freed when the last lease ends.
#[derive(Args)]
pub(crate) struct RmArgs {
    #[command(flatten)]
    pub(crate) client: Client,
    /// Names of tensors, or patterns with * and ?, such as 'bert/*'. Existing tensors are removed even if other names do not exist.
    #[arg(required_unless_present = "all", value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Remove every tensor.
    #[arg(long, conflicts_with = "names")]
    pub(crate) all: bool,
}

/// Show tensors, holders, bytes and hits, live; q or Ctrl-C quits. Without a terminal, print the tables once.
#[derive(Args)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    pub(crate) client: Client,
    /// Time between two refreshes.
    #[arg(long, default_value = "1s", value_name = TIME, value_parser = time_from(Duration::from_millis(50), Duration::from_secs(3600), "from 50ms to 1h"))]
    pub(crate) interval: Duration,
}

/// Print the token that HTTP requests to the daemon need.
///
/// Every user of the machine can read the arguments of programs. Do not pass the token as an argument; write the header
/// to a file that only you can read.
#[derive(Args)]
#[command(
    after_help = "Example:\n  (umask 077; cotensor token --header > auth)\n  curl -H @auth http://127.0.0.1:2537/metrics"
)]
pub(crate) struct TokenArgs {
    #[command(flatten)]
    pub(crate) client: Client,
    /// Print the complete header: Authorization: Bearer TOKEN.
    #[arg(long, conflicts_with = "json")]
    pub(crate) header: bool,
}

/// Open the dashboard in a browser. The daemon's HTTP is turned on, on loopback only, if it is off.
///
/// The browser opens a file that only you can read. The file redirects to the dashboard with a code that is valid once,
/// for one minute.
#[derive(Args)]
pub(crate) struct DashboardArgs {
    #[command(flatten)]
    pub(crate) client: Client,
    /// Print the path of the file, and open no browser.
    #[arg(long)]
    pub(crate) no_open: bool,
}

/// Check whether this system supports the daemon, and report causes of low speed.
///
/// Tests sealed memory, reads the kernel's limits, and pings the daemon if one runs. Where a GPU driver is installed, kills a
/// process that has made memory on each GPU, and reads that memory. Changes nothing. Exit code 1 when a check fails.
#[derive(Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) client: Client,
    /// Make memory on this GPU, of which standard input gets the descriptor; set for the process that is killed.
    #[arg(long, hide = true, value_name = "DEVICE")]
    pub(crate) produce: Option<u32>,
    /// Keep a descriptor that standard input gives; set for the process that has no driver.
    #[arg(long, hide = true)]
    pub(crate) hold: bool,
}

/// Find duplicate memory in running processes: an estimate of the savings by sharing.
///
/// Needs no daemon and changes nothing. Reads the memory of this user's processes, and counts pages that have equal
/// content but are not one physical page. Pages of zeros are left out. Unreadable memory is listed. The last lines are the
/// code with which each program would share its duplicates, chosen by the libraries and model files that it has mapped.
#[derive(Args)]
pub(crate) struct ScanArgs {
    /// Scan only this process; repeatable [default: all processes of this user].
    #[arg(long, value_name = "PID")]
    pub(crate) pid: Vec<u32>,
    /// Skip mappings smaller than this.
    #[arg(long, default_value = "1MiB", value_name = SIZE, value_parser = size)]
    pub(crate) min_range: u64,
    /// Stop after reading this much.
    #[arg(long, default_value = "16GiB", value_name = SIZE, value_parser = size)]
    pub(crate) max_read: u64,
    /// Stop after this time.
    #[arg(long, default_value = "2min", value_name = TIME, value_parser = time)]
    pub(crate) max_time: Duration,
    /// Sample one of N contents. Needs less memory and time; the figures are estimates.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) sample: u32,
    /// Print one JSON object on standard output and nothing else.
    #[arg(long)]
    pub(crate) json: bool,
}

/// List the COTENSOR_* variables and their values, or print the variables with which other programs use the daemon.
///
/// `cotensor env openai` turns the daemon's HTTP on, on loopback only, if it is off. The key is good for the paths below /v1
/// only: it gives access to models and to no tensor.
#[derive(Args)]
#[command(after_help = env_help())]
pub(crate) struct EnvArgs {
    /// Clients whose variables are printed, as commands of a shell.
    #[arg(value_name = "CLIENTS")]
    pub(crate) clients: Option<EnvClients>,
    #[command(flatten)]
    pub(crate) client: Client,
    /// Print docs/reference/configuration.md.
    #[arg(long, conflicts_with_all = ["json", "clients"])]
    pub(crate) markdown: bool,
}

/// The clients for which `env` prints variables.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum EnvClients {
    /// OPENAI_BASE_URL and OPENAI_API_KEY, for the clients of OpenAI's API.
    Openai,
}

fn env_help() -> String {
    format!("{}\nExample:\n  eval \"$(cotensor env openai)\" && echo $OPENAI_BASE_URL", environment::help())
}

/// Print the version, the commit, the protocol's version and the engines.
#[derive(Args)]
pub(crate) struct VersionArgs {
    /// Print one JSON object on standard output and nothing else.
    #[arg(long)]
    pub(crate) json: bool,
}
