//! Functions and tasks.

use super::Client;
use clap::Args;
use cotensor_client::protocol::provider::TaskState;
use std::path::PathBuf;
use std::time::Duration;

/// Calls a function that some process provides, and prints its result.
///
/// ARG is JSON, or text as it stands where it does not read as JSON; @NAME is a tensor of the store, @FILE.npy or
/// @FILE.safetensors (with #TENSOR where the file has several) one of a file. KEY=ARG is an argument by name. Within
/// JSON, {"$tensor": "NAME"} is a tensor. Tensors of a file last as long as this command and whoever uses them; so do
/// those of the result, unless the function keeps them.
#[derive(Args)]
#[command(after_help = "Examples:\n  cotensor call --list\n  cotensor call scale @query 0.5 --output scaled.npy\n  \
    cotensor call score @photo.npy 'labels=[\"cat\", \"dog\"]' --timeout 10\n  \
    cotensor call model.run model=$PWD/bert task=sentence-embedding 'text=hello, world'\n  \
    cotensor call train @batch --task    # prints a task for `cotensor tasks`")]
pub(crate) struct CallArgs {
    #[command(flatten)]
    pub(crate) client: Client,
    /// The function; with --list, how the names start.
    #[arg(required_unless_present = "list")]
    pub(crate) name: Option<String>,
    /// What it is given.
    #[arg(value_name = "ARG|KEY=ARG", allow_negative_numbers = true)]
    pub(crate) arguments: Vec<String>,
    /// List functions and who provides them.
    #[arg(long, conflicts_with_all = ["arguments", "output", "task", "timeout", "wait"])]
    pub(crate) list: bool,
    /// Write the result's tensors to a .npy, .safetensors or .raw file; a .safetensors file takes several, under their
    /// places in the result.
    #[arg(long, short, value_name = "FILE", conflicts_with = "task")]
    pub(crate) output: Option<PathBuf>,
    /// The longest that the call may take; it is asked to stop then [default: as long as its provider lives].
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) timeout: Option<Duration>,
    /// Wait so long for a process that offers the function [default: it has to be offered already].
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) wait: Option<Duration>,
    /// Do not wait: print a task that `cotensor tasks` waits for, cancels and takes the result of.
    #[arg(long)]
    pub(crate) task: bool,
}

/// Lists the tasks of all providers, or shows one, waits for it, cancels it or prints its result.
///
/// Exit code 1 when a task that was waited for has not completed.
#[derive(Args)]
#[command(after_help = "Examples:\n  cotensor tasks --state running\n  cotensor tasks 1a2b3c-7 --wait --result\n  \
    cotensor tasks 1a2b3c-7 --cancel")]
pub(crate) struct TasksArgs {
    #[command(flatten)]
    pub(crate) client: Client,
    /// The task, as `cotensor call --task` printed it [default: list all].
    pub(crate) task: Option<String>,
    /// Wait until it has ended.
    #[arg(long, requires = "task")]
    pub(crate) wait: bool,
    /// The longest to wait.
    #[arg(long, requires = "wait", value_name = "SECONDS", value_parser = seconds)]
    pub(crate) timeout: Option<Duration>,
    /// Print its result, as `cotensor call` does.
    #[arg(long, requires = "task")]
    pub(crate) result: bool,
    /// Write the result's tensors to a file, as `cotensor call` does.
    #[arg(long, short, requires = "result", value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Cancel it: one that runs is asked to stop.
    #[arg(long, requires = "task", conflicts_with_all = ["wait", "result"])]
    pub(crate) cancel: bool,
    /// List only tasks in this state: pending, running, completed, failed, cancelled.
    #[arg(long, conflicts_with = "task", value_parser = state)]
    pub(crate) state: Option<TaskState>,
    /// The most to list of each provider; the newest.
    #[arg(long, default_value_t = 100, value_name = "N", conflicts_with = "task", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) limit: u32,
}

/// Offers models as functions of the daemon, until SIGTERM or Ctrl-C: a model that is open here, any process runs.
///
/// model.open FOLDER gives a reference; model.run MODEL TASK runs a task, model.stage MODEL ROLE INPUTS a stage. MODEL is
/// a reference or a folder's absolute path. What one caller had computed, the next one gets.
#[derive(Args)]
#[command(after_help = "Example:\n  cotensor serve-models &\n  \
    cotensor call --wait 10 model.run model=$PWD/bert task=sentence-embedding 'text=hello, world' --output embedding.safetensors")]
pub(crate) struct ServeModelsArgs {
    #[command(flatten)]
    pub(crate) client: Client,
    /// Threads of the engine [default: one per core].
    #[arg(long, env = crate::environment::THREADS, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Calls that run at a time; more wait.
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) workers: u16,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let parsed = text.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    parsed.filter(|time| !time.is_zero()).ok_or_else(|| format!("{text:?} is no number of seconds above 0"))
}

fn state(text: &str) -> Result<TaskState, String> {
    let all = [TaskState::Pending, TaskState::Running, TaskState::Completed, TaskState::Failed, TaskState::Cancelled];
    let found = all.into_iter().find(|state| state.name() == text);
    found.ok_or_else(|| format!("{text:?} is none of {}", all.map(TaskState::name).join(", ")))
}
