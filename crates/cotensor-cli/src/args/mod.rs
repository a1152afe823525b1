//! The definitions of the command line's arguments. `commands` implements the commands.

mod adapters;
mod cache;
mod calls;
mod channel;
mod config;
mod daemon;
mod embed;
mod models;
mod models_kept;
mod placement;
mod quantize;
pub(crate) mod serve_values;
mod service;
mod sharing;
mod stream;
mod units;

pub(crate) use adapters::*;
pub(crate) use cache::*;
pub(crate) use calls::*;
pub(crate) use channel::*;
pub(crate) use config::*;
pub(crate) use daemon::*;
pub(crate) use embed::*;
pub(crate) use models::*;
pub(crate) use models_kept::*;
pub(crate) use placement::*;
pub(crate) use quantize::*;
pub(crate) use service::*;
pub(crate) use sharing::*;
pub(crate) use stream::*;

use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand};
use cotensor::model::engine;
use cotensor_client::settings;
use std::path::PathBuf;

/// One copy of every tensor per machine.
#[derive(Parser)]
#[command(
    name = "cotensor",
    version,
    max_term_width = 100,
    after_help = "Exit codes: 0 done, 1 failed, 2 bad input or usage."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Measure several users of one model with and without sharing.
    Demo(DemoArgs),
    Run(RunArgs),
    Stream(StreamArgs),
    Pull(PullArgs),
    /// List which stages of a pipeline are shared by which users, and why others are not.
    Explain(ExplainArgs),
    Embed(EmbedArgs),
    Models(ModelsArgs),
    FitAdapter(FitAdapterArgs),
    Quantize(QuantizeArgs),
    Plan(PlanArgs),
    Trace(TraceArgs),
    Serve(ServeArgs),
    Status(StatusArgs),
    Stop(StopArgs),
    Logs(LogsArgs),
    Service(ServiceArgs),
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
    Channel(ChannelArgs),
    ServeModels(ServeModelsArgs),
    Doctor(DoctorArgs),
    Scan(ScanArgs),
    Cache(CacheArgs),
    Config(ConfigArgs),
    Env(EnvArgs),
    Version(VersionArgs),
    /// Print a completion script for a shell. It completes commands, options, tensors and functions of the running daemon, and
    /// models in the hub's cache.
    ///
    /// bash: `source <(cotensor completions bash)` in ~/.bashrc. zsh: the same in ~/.zshrc. fish: `cotensor completions fish |
    /// source` in ~/.config/fish/config.fish. The command `cotensor` must be in the PATH.
    Completions {
        /// Shell.
        shell: clap_complete::Shell,
    },
    /// Perform one measured run of the demo.
    #[command(hide = true)]
    DemoWorker(WorkerArgs),
    /// Run the model of the demo's scenario of several processes.
    #[command(hide = true)]
    DemoProcess(ProcessArgs),
}

#[derive(Args)]
pub(crate) struct Common {
    /// Folder for weights and the demo's models [default: the user's cache folder].
    #[arg(long, env = settings::CACHE.variable, value_name = "DIR")]
    pub(crate) cache: Option<PathBuf>,
    /// Number of engine threads [default: one per core].
    #[arg(long, env = settings::THREADS.variable, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Memory budget of the store, such as 4GiB or 50% of the machine's memory [default: none; 50% for the daemon].
    #[arg(long, env = settings::MAX_MEMORY.variable, value_name = units::SIZE, value_parser = units::budget)]
    pub(crate) max_memory: Option<u64>,
    /// Print one JSON object on standard output and nothing else.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Where a command keeps weights and results.
#[derive(Args)]
pub(crate) struct PlaceArgs {
    /// Keep weights and results in the daemon, and reuse those of other processes. The daemon's budget applies. The cache
    /// folder keeps only weights in the layout of an engine's kernels.
    #[arg(long)]
    pub(crate) daemon: bool,
    /// Unix socket of the daemon, with --daemon [default: cotensor.sock in /tmp/cotensor-UID].
    // Not read from COTENSOR_SOCKET here: the variable alone must not require --daemon. The client reads it.
    #[arg(long, value_name = "PATH", requires = "daemon")]
    pub(crate) socket: Option<PathBuf>,
}

/// The store, the engine and the limits of a command that runs models in this process or over the daemon.
#[derive(Args)]
pub(crate) struct RuntimeArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
    #[command(flatten)]
    pub(crate) sharing: SharingArgs,
}

/// The choice of an engine.
#[derive(Args)]
pub(crate) struct EngineArgs {
    /// Engine that runs graphs: ort (onnxruntime, whose library is searched in ORT_DYLIB_PATH and in Python
    /// environments), ort-shared (the same without copies of weights for its kernels), rten, or auto for the fastest one
    /// that supports a graph [default: auto].
    #[arg(long, env = settings::ENGINE.variable, value_name = "NAME", value_parser = engine_names(), hide_possible_values = true)]
    pub(crate) engine: Option<String>,
}

fn engine_names() -> PossibleValuesParser {
    PossibleValuesParser::new(std::iter::once(engine::AUTO).chain(engine::names()))
}

#[derive(Args)]
pub(crate) struct DemoArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    /// Run scenarios with and without sharing, and compare (the default).
    #[arg(long)]
    pub(crate) compare: bool,
    /// Scenario to run; repeatable: clip, bert, whisper (several users of one model), vit-clip, bert-t5, whisper-clap,
    /// bert-t5-bart, three-texts, vit-clip-detr (several models that read one encoder through adapters), llava (CLIP and LLaVA
    /// with one tower), processes (several processes of one model), or all, which needs about 15 GB of disk and onnxruntime
    /// [default: clip, bert, whisper, vit-clip, processes].
    #[arg(long, value_name = "NAME")]
    pub(crate) scenario: Vec<String>,
    /// Device to run on.
    #[arg(long, default_value = "cpu", value_name = "DEVICE")]
    pub(crate) hardware: String,
    /// Folder of real checkpoints, one folder per model (bert-base, clip-vit-b16, whisper-base, vit-base, t5-base,
    /// bart-base, detr-resnet-50, clap-htsat, clip-vit-l14-336, llava-0.5b). A model without a folder gets seeded random weights.
    #[arg(long, value_name = "DIR")]
    pub(crate) models: Option<PathBuf>,
    /// Number of timed runs of each variant; the median counts.
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=99))]
    pub(crate) repeats: u16,
    /// Number of processes in the scenario processes.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) processes: u16,
    /// Write a page with charts of memory and time.
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    /// TOML file of the pipeline.
    pub(crate) pipeline: PathBuf,
}

#[derive(Args)]
pub(crate) struct WorkerArgs {
    #[arg(long)]
    pub(crate) scenario: String,
    #[arg(long)]
    pub(crate) mode: String,
    #[arg(long, required = true)]
    pub(crate) model: Vec<PathBuf>,
    #[arg(long)]
    pub(crate) adapter: Vec<PathBuf>,
    #[arg(long)]
    pub(crate) cache: PathBuf,
    #[arg(long)]
    pub(crate) engine: String,
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: u16,
    #[arg(long)]
    pub(crate) max_memory_bytes: Option<u64>,
    #[arg(long)]
    pub(crate) record: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct ProcessArgs {
    pub(crate) folder: PathBuf,
    #[arg(long)]
    pub(crate) index: usize,
    #[arg(long)]
    pub(crate) engine: String,
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: u16,
    #[arg(long)]
    pub(crate) cache: PathBuf,
    #[arg(long)]
    pub(crate) mapped: bool,
    #[arg(long, conflicts_with = "mapped")]
    pub(crate) socket: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn examples_are_not_wrapped_on_narrow_terminals() {
        let (mut count, mut long) = (0, Vec::new());
        for command in Cli::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for line in help.lines().skip_while(|line| !line.starts_with("Example")) {
                count += 1;
                if line.chars().count() > 80 {
                    long.push(format!("{}: {line}", command.get_name()));
                }
            }
        }
        assert!(count > 20 && long.is_empty(), "{count} lines, too long: {long:#?}");
    }
}
