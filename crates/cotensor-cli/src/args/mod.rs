//! What the command line accepts. Definitions only; `commands` acts on them.

mod cache;
mod calls;
mod daemon;
mod sharing;

pub(crate) use cache::*;
pub(crate) use calls::*;
pub(crate) use daemon::*;
pub(crate) use sharing::*;

use crate::environment;
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// One copy of every tensor per machine.
#[derive(Parser)]
#[command(name = "cotensor", version, after_help = "Exit codes: 0 done, 1 failed, 2 bad input or usage.")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Measure several users of one model with and without sharing.
    Demo(DemoArgs),
    /// Run a pipeline: several users on the same input.
    Run(RunArgs),
    /// Say which stages of a pipeline are shared and by whom, and why others are not.
    Explain(ExplainArgs),
    /// List the model families: what is supported, what is open.
    Models(ModelsArgs),
    Serve(ServeArgs),
    Put(PutArgs),
    Get(GetArgs),
    Ls(LsArgs),
    Stat(StatArgs),
    Who(WhoArgs),
    Rm(RmArgs),
    Top(TopArgs),
    Token(TokenArgs),
    Dashboard(DashboardArgs),
    Call(CallArgs),
    Tasks(TasksArgs),
    ServeModels(ServeModelsArgs),
    Doctor(DoctorArgs),
    Scan(ScanArgs),
    Cache(CacheArgs),
    Env(EnvArgs),
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// One measured run of the demo, in a process of its own.
    #[command(hide = true)]
    DemoWorker(WorkerArgs),
}

#[derive(Args)]
pub(crate) struct Common {
    /// Where weights (and the demo's models) are kept [default: the user's cache folder].
    #[arg(long, env = environment::CACHE, value_name = "DIR")]
    pub(crate) cache: Option<PathBuf>,
    /// Threads of the engine [default: one per core].
    #[arg(long, env = environment::THREADS, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// The store's budget in MiB [default: none].
    #[arg(long, env = environment::MAX_MEMORY, value_name = "MIB")]
    pub(crate) max_memory: Option<u64>,
    /// Print one JSON object on standard output, and nothing else there.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct DemoArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Run every scenario with and without sharing and compare (the default).
    #[arg(long)]
    pub(crate) compare: bool,
    /// Only this scenario; may be given several times: clip, bert, whisper.
    #[arg(long, value_name = "NAME")]
    pub(crate) scenario: Vec<String>,
    /// The device to run on.
    #[arg(long, default_value = "cpu", value_name = "DEVICE")]
    pub(crate) hardware: String,
    /// A folder of real checkpoints, one folder per model (bert-base, clip-vit-b16, whisper-base); seeded weights where there is none.
    #[arg(long, value_name = "DIR")]
    pub(crate) models: Option<PathBuf>,
    /// Timed runs of each way; the median counts.
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=99))]
    pub(crate) repeats: u16,
    /// Also write a page with charts of memory and time.
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Keep weights and results in the daemon: what another process has loaded or computed is not done again. The budget
    /// is the daemon's then, and no cache folder is used.
    #[arg(long)]
    pub(crate) daemon: bool,
    /// The daemon's Unix socket, with --daemon [default: cotensor.sock in $XDG_RUNTIME_DIR, else in /tmp/cotensor-UID].
    // COTENSOR_SOCKET is read where the daemon is looked for: given as a variable, it does not ask for --daemon.
    #[arg(long, value_name = "PATH", requires = "daemon")]
    pub(crate) socket: Option<PathBuf>,
    /// The pipeline's TOML file.
    pub(crate) pipeline: PathBuf,
    /// The text that its users read.
    #[arg(long, value_name = "TEXT")]
    pub(crate) text: Option<String>,
    /// The image that its users look at (PNG, JPEG, WebP, BMP).
    #[arg(long, value_name = "FILE")]
    pub(crate) image: Option<PathBuf>,
    /// The audio that its users hear (WAV, FLAC, MP3, Ogg Vorbis).
    #[arg(long, value_name = "FILE")]
    pub(crate) audio: Option<PathBuf>,
    /// Run it without sharing too, and say how far the outputs differ. Ends with exit code 1 when they do.
    #[arg(long)]
    pub(crate) compare: bool,
    #[command(flatten)]
    pub(crate) sharing: SharingArgs,
}

#[derive(Args)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    /// The pipeline's TOML file.
    pub(crate) pipeline: PathBuf,
}

#[derive(Args)]
pub(crate) struct ModelsArgs {
    /// Print one JSON object on standard output, and nothing else there.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct WorkerArgs {
    #[arg(long)]
    pub(crate) scenario: String,
    #[arg(long)]
    pub(crate) mode: String,
    #[arg(long)]
    pub(crate) model: PathBuf,
    #[arg(long)]
    pub(crate) cache: PathBuf,
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: u16,
    #[arg(long)]
    pub(crate) max_memory_bytes: Option<u64>,
    #[arg(long)]
    pub(crate) record: Option<PathBuf>,
}
