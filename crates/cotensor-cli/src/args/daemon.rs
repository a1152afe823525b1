//! The daemon's commands.

use super::SharingArgs;
use crate::environment;
use clap::{Args, ValueEnum};
use cotensor_formats::Format;
use std::path::PathBuf;

const MIB: &str = "MIB";

/// Which daemon, and how to answer.
#[derive(Args)]
pub(crate) struct Client {
    /// The daemon's Unix socket [default: cotensor.sock in $XDG_RUNTIME_DIR, else in /tmp/cotensor-UID].
    #[arg(long, env = environment::SOCKET, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Print one JSON object on standard output, and nothing else there.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Keeps one copy of every tensor for all processes of this user, until SIGTERM or Ctrl-C.
///
/// The daemon holds tensors that others made and sealed; it copies none. This process keeps them and runs another one that
/// serves: should that die, the next takes everything over. A second daemon on the same socket is refused; should this
/// process be killed, the daemon goes on while it is used, and the next `cotensor serve` takes it over.
/// dist/cotensor.service runs it under systemd.
#[derive(Args)]
pub(crate) struct ServeArgs {
    /// Where to listen: a Unix socket, made with mode 0600 [default: cotensor.sock in $XDG_RUNTIME_DIR, else in
    /// /tmp/cotensor-UID].
    #[arg(long, env = environment::SOCKET, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// The most memory of all tensors together, in MiB, counting 1 KiB more for each tensor [default: none]. What nobody uses
    /// goes first; then publishing fails with an error that names who holds what.
    #[arg(long, env = environment::MAX_MEMORY, value_name = MIB)]
    pub(crate) max_memory: Option<u64>,
    /// The most memory that one client may lease and reserve, in MiB [default: none].
    #[arg(long, env = environment::MAX_CLIENT_MEMORY, value_name = MIB)]
    pub(crate) max_client_memory: Option<u64>,
    /// Give every tensor sealed memory of its own, which its producer cannot change either. Without this, the producer of a tensor of
    /// at most 256 KiB can write it later. A small tensor then takes a descriptor and whole pages (4 KiB).
    #[arg(long)]
    pub(crate) seal_all: bool,
    /// Answer HTTP too: JSON-RPC, tensors' bytes, health, metrics and a page to look at. Requests need the token that
    /// `cotensor token` prints; `cotensor dashboard` opens the page [default without a value: 127.0.0.1, port 2537 + RANK].
    #[arg(long, env = environment::LISTEN, value_name = "ADDRESS:PORT", num_args = 0..=1, default_missing_value = "")]
    pub(crate) listen: Option<String>,
    /// A folder for what nobody leases when the memory is wanted, instead of dropping it: kept in files that are this
    /// daemon's alone, read back when it is asked for, and removed when the daemon stops.
    #[arg(long, env = environment::SPILL, value_name = "DIR")]
    pub(crate) spill: Option<PathBuf>,
    /// The most bytes of these files, in MiB [default: what the disk takes].
    #[arg(long, env = environment::MAX_SPILL, value_name = MIB, requires = "spill")]
    pub(crate) max_spill: Option<u64>,
    /// A file that holds the token, readable by its owner alone. Every user who has this token is served; with the token
    /// that is made otherwise, on loopback, only this user's processes are [default: made beside the socket, as PATH.token].
    #[arg(long, env = environment::TOKEN_FILE, value_name = "FILE", requires = "listen")]
    pub(crate) token_file: Option<PathBuf>,
    /// A host name by which HTTP clients may address the daemon, besides plain addresses and localhost; may be given several
    /// times. Under other names nobody is answered: a page of another site could point its own name at this machine.
    #[arg(
        long,
        env = environment::ALLOW_HOST,
        value_name = "NAME",
        value_delimiter = ',',
        value_parser = host,
        requires = "listen"
    )]
    pub(crate) allow_host: Vec<String>,
    /// What to log on standard error: off, error, warn, info, debug, trace, or a list such as `warn,cotensor_daemon=debug`.
    #[arg(long, env = environment::LOG, value_name = "LEVEL")]
    pub(crate) log: Option<String>,
    /// Log every session and call: short for --log debug.
    #[arg(long, short, conflicts_with = "log")]
    pub(crate) verbose: bool,
    /// Print one JSON object on standard output once clients can connect: {"socket", "pid", "server", "epoch", "http",
    /// "token_file", "resumed"}. End the process `pid` to end the daemon.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) sharing: SharingArgs,
    /// What this process is to the daemon, where the daemon itself started it.
    #[arg(long, hide = true, default_value = "foreground")]
    pub(crate) role: cotensor_daemon::keeper::Role,
}

/// A host's name as a Host header has it, without a port.
fn host(name: &str) -> Result<String, String> {
    let part =
        |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    match name.split('.').all(part) {
        true => Ok(name.to_owned()),
        false => Err("a host name such as tensors.example is expected, without scheme and port".to_owned()),
    }
}

/// How a file holds tensors.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum FileFormat {
    /// One tensor, as numpy.save writes it.
    Npy,
    /// Any number of named tensors.
    Safetensors,
    /// The elements alone, row by row, least significant byte first.
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

/// Publishes a file's tensors; they stay when this command ends, until they are removed or their memory is wanted.
///
/// The file is read straight into the memory that every process then maps. A name that is there already gets a new
/// version; whoever reads the old one keeps it.
#[derive(Args)]
#[command(after_help = "Examples:\n  cotensor put query query.npy\n  cotensor put --all bert/ model.safetensors\n  \
    cotensor put head model.safetensors --tensor classifier.weight\n  \
    cotensor put noise noise.bin --dtype float32 --shape 16,1024\n  cat x.npy | cotensor put x - --format npy")]
pub(crate) struct PutArgs {
    #[command(flatten)]
    pub(crate) client: Client,
    /// The name to publish under; with --all, what every name starts with.
    pub(crate) name: String,
    /// A .npy, .safetensors, .raw or .bin file, or - for standard input.
    pub(crate) file: PathBuf,
    /// The file's format, where its name does not say.
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<FileFormat>,
    /// Publish every tensor of the file, each as NAME followed by its name in the file.
    #[arg(long, conflicts_with = "tensor")]
    pub(crate) all: bool,
    /// Which tensor of the file, where it has several.
    #[arg(long, value_name = "NAME")]
    pub(crate) tensor: Option<String>,
    /// Element type of bare bytes, such as float32 or BF16.
    #[arg(long, requires = "shape")]
    pub(crate) dtype: Option<String>,
    /// Shape of bare bytes, such as 2,768; empty for a single number.
    #[arg(long, requires = "dtype", value_name = "DIMS")]
    pub(crate) shape: Option<String>,
    /// What the tensor means, such as text_embedding.
    #[arg(long, default_value = "other")]
    pub(crate) kind: String,
    /// What it would take to make it again: when memory is wanted, what is cheap per byte goes first.
    #[arg(long, default_value_t = 3600, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(..=1_000_000_000))]
    pub(crate) recompute: u64,
}

/// Writes a tensor to a file.
#[derive(Args)]
#[command(after_help = "Examples:\n  cotensor get query query.npy\n  cotensor get --all bert/ model.safetensors\n  \
    cotensor get query - | python3 -c 'import io, sys, numpy; print(numpy.load(io.BytesIO(sys.stdin.buffer.read())))'")]
pub(crate) struct GetArgs {
    #[command(flatten)]
    pub(crate) client: Client,
    /// The tensor's name; with --all, what the names start with.
    pub(crate) name: String,
    /// A .npy, .safetensors, .raw or .bin file, or - for standard output. A file is replaced as a whole or not at all.
    pub(crate) file: PathBuf,
    /// The file's format, where its name does not say [default for -: npy].
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<FileFormat>,
    /// Write every tensor whose name starts with NAME, under the rest of its name (needs a .safetensors file).
    #[arg(long)]
    pub(crate) all: bool,
}

/// Lists tensors.
#[derive(Args)]
pub(crate) struct LsArgs {
    #[command(flatten)]
    pub(crate) client: Client,
    /// How their names start.
    #[arg(default_value = "")]
    pub(crate) prefix: String,
    /// The most to list.
    #[arg(long, default_value_t = 10_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) limit: u32,
}

/// Shows tensors with all their versions, or the daemon's counters.
#[derive(Args)]
pub(crate) struct StatArgs {
    #[command(flatten)]
    pub(crate) client: Client,
    /// The tensors; none for the daemon.
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
}

/// Says who holds tensors, through which process, and how often.
///
/// A process is listed under the name that it asked with first: what it leases again, it takes from that lease.
#[derive(Args)]
pub(crate) struct WhoArgs {
    #[command(flatten)]
    pub(crate) client: Client,
    /// The tensors.
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
}

/// Forgets tensors: their names are free at once, their memory returns when the last reader lets go.
#[derive(Args)]
pub(crate) struct RmArgs {
    #[command(flatten)]
    pub(crate) client: Client,
    /// The tensors. Those that are there go, also when others are not.
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
}

/// Shows tensors, holders, bytes and hits, live; q or Ctrl-C ends it. Tables once where there is no terminal.
#[derive(Args)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    pub(crate) client: Client,
    /// Milliseconds between looks.
    #[arg(long, default_value_t = 1000, value_name = "MS", value_parser = clap::value_parser!(u32).range(50..=3_600_000))]
    pub(crate) interval_ms: u32,
}

/// Prints the token that HTTP requests to the daemon need.
///
/// Arguments of programs can be read by every user of the machine, so do not put the token into one: write the header into a
/// file that only you can read.
#[derive(Args)]
#[command(
    after_help = "Example:\n  (umask 077; cotensor token --header > auth) && curl -H @auth http://127.0.0.1:2537/metrics"
)]
pub(crate) struct TokenArgs {
    #[command(flatten)]
    pub(crate) client: Client,
    /// Print the whole header: Authorization: Bearer TOKEN.
    #[arg(long, conflicts_with = "json")]
    pub(crate) header: bool,
}

/// Opens the daemon's page in a browser.
///
/// The browser gets a file that only you can read. It leads to the page with a code that is good once, and for a minute.
#[derive(Args)]
pub(crate) struct DashboardArgs {
    #[command(flatten)]
    pub(crate) client: Client,
    /// Only name the file.
    #[arg(long)]
    pub(crate) no_open: bool,
}

/// Looks at what this machine can do for the daemon, what will be slow, and why.
///
/// Tries sealed memory, reads the kernel's limits, and asks the daemon if one runs. Changes nothing. Exit code 1 when
/// something does not work.
#[derive(Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) client: Client,
}

/// Finds what running processes hold twice, page by page: what sharing would save, before anything is adopted.
///
/// Needs no daemon and changes nothing: the memory of this user's processes is read, and pages of equal content that are
/// not one page already are counted. Zeros are left out. What may not be read is named.
#[derive(Args)]
pub(crate) struct ScanArgs {
    /// Only this process; may be given several times [default: all of this user's].
    #[arg(long, value_name = "PID")]
    pub(crate) pid: Vec<u32>,
    /// Leave out ranges of fewer KiB.
    #[arg(long, default_value_t = 1024, value_name = "KIB", value_parser = clap::value_parser!(u64).range(..1 << 40))]
    pub(crate) min_range: u64,
    /// Stop after reading so many MiB.
    #[arg(long, default_value_t = 16_384, value_name = "MIB")]
    pub(crate) max_read: u64,
    /// Stop after so many seconds.
    #[arg(long, default_value_t = 120, value_name = "SECONDS")]
    pub(crate) max_time: u64,
    /// Take in one content of N: less memory and time, and estimates instead of counts.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) sample: u32,
    /// Print one JSON object on standard output, and nothing else there.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Lists the COTENSOR_* variables and what they are set to.
#[derive(Args)]
#[command(after_help = crate::environment::help())]
pub(crate) struct EnvArgs {
    /// Print docs/environment.md.
    #[arg(long, conflicts_with = "json")]
    pub(crate) markdown: bool,
    /// Print one JSON object on standard output, and nothing else there.
    #[arg(long)]
    pub(crate) json: bool,
}
