//! Arguments of the commands for functions and tasks.

use super::Client;
use super::units::{TIME, YEAR, time, time_from};
use clap::Args;
use cotensor_client::protocol::provider::TaskState;
use std::path::PathBuf;
use std::time::Duration;

/// Call a function of another process, and print its result.
///
/// ARG is JSON; text that is not valid JSON is passed as a string. @NAME is a tensor of the store. @FILE.npy or
/// @FILE.safetensors (#TENSOR selects one of several) is a tensor of a file. KEY=ARG is a keyword argument. Within
/// JSON, {"$tensor": "NAME"} is a tensor. Tensors of files and of the result are freed when this command ends and no
/// other process leases them, unless the function keeps them.
#[derive(Args)]
#[command(after_help = "Examples:\n  cotensor call --list\n  cotensor call scale @query 0.5 --output scaled.npy\n  \
    cotensor call score @photo.npy 'labels=[\"cat\", \"dog\"]' --timeout 10\n  \
    cotensor call model.run model=$PWD/bert task=sentence-embedding \\\n    'text=hello, world'\n  \
    cotensor call train @batch --task    # prints a task for `cotensor tasks`")]
pub(crate) struct CallArgs {
    #[command(flatten)]
    pub(crate) client: Client,
    /// Name of the function; with --list, the prefix of the names.
    #[arg(required_unless_present = "list")]
    pub(crate) name: Option<String>,
    /// Arguments of the function.
    #[arg(value_name = "ARG|KEY=ARG", allow_negative_numbers = true)]
    pub(crate) arguments: Vec<String>,
    /// List functions and their providers.
    #[arg(long, conflicts_with_all = ["arguments", "output", "task", "timeout", "wait"])]
    pub(crate) list: bool,
    /// Write the tensors of the result to a .npy, .safetensors or .raw file. A .safetensors file takes several
    /// tensors, named by their paths in the result.
    #[arg(long, short, value_name = "FILE", conflicts_with = "task")]
    pub(crate) output: Option<PathBuf>,
    /// Time-out of the call, after which it is cancelled [default: none; the call ends with its provider].
    #[arg(long, value_name = TIME, value_parser = time)]
    pub(crate) timeout: Option<Duration>,
    /// Time to wait for a process that offers the function [default: do not wait].
    #[arg(long, value_name = TIME, value_parser = time)]
    pub(crate) wait: Option<Duration>,
    /// Submit the call as a task and print its name. `cotensor tasks` waits for it, cancels it or prints its result.
    #[arg(long)]
    pub(crate) task: bool,
}

/// List the tasks of all providers; or show one task, wait for it, cancel it or print its result.
///
/// With --wait, exit code 1 when the task does not complete.
#[derive(Args)]
#[command(after_help = "Examples:\n  cotensor tasks --state running\n  cotensor tasks 1a2b3c-7 --wait --result\n  \
    cotensor tasks 1a2b3c-7 --cancel")]
pub(crate) struct TasksArgs {
    #[command(flatten)]
    pub(crate) client: Client,
    /// Task, as printed by `cotensor call --task` [default: list all tasks].
    pub(crate) task: Option<String>,
    /// Wait until the task ends.
    #[arg(long, requires = "task")]
    pub(crate) wait: bool,
    /// Time-out of --wait.
    #[arg(long, requires = "wait", value_name = TIME, value_parser = time)]
    pub(crate) timeout: Option<Duration>,
    /// Print the result, as `cotensor call` does.
    #[arg(long, requires = "task")]
    pub(crate) result: bool,
    /// Write the tensors of the result to a file, as `cotensor call` does.
    #[arg(long, short, requires = "result", value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Cancel the task. A running task gets a request to stop.
    #[arg(long, requires = "task", conflicts_with_all = ["wait", "result"])]
    pub(crate) cancel: bool,
    /// List only tasks in this state: pending, running, completed, failed, cancelled.
    #[arg(long, conflicts_with = "task", value_parser = state)]
    pub(crate) state: Option<TaskState>,
    /// Maximum number of tasks to list per provider, newest first.
    #[arg(long, default_value_t = 100, value_name = "N", conflicts_with = "task", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) limit: u32,
}

/// Offer models as functions to other processes, until SIGTERM or Ctrl-C.
///
/// model.open FOLDER returns a reference, model.run MODEL TASK runs a task, and model.stage MODEL ROLE INPUTS runs a
/// stage. MODEL is a reference or the absolute path of a folder. Callers share computed results.
#[derive(Args)]
#[command(after_help = "Example:\n  cotensor serve-models &\n  \
    cotensor call --wait 10 model.run model=$PWD/bert task=sentence-embedding \\\n    \
    'text=hello, world' --output embedding.safetensors")]
pub(crate) struct ServeModelsArgs {
    #[command(flatten)]
    pub(crate) client: Client,
    /// Folder for weights in the layout of the engine's kernels [default: the user's cache folder].
    #[arg(long, env = cotensor_client::settings::CACHE.variable, value_name = "DIR")]
    pub(crate) cache: Option<PathBuf>,
    /// Number of engine threads [default: one per core].
    #[arg(long, env = cotensor_client::settings::THREADS.variable, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    #[command(flatten)]
    pub(crate) engine: super::EngineArgs,
    /// Number of calls that run concurrently; further calls wait.
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) workers: u16,
    /// Answer HTTP requests for embeddings and rankings at this Unix socket, too; the daemon forwards /v1 to it. Ends with
    /// standard input if that is a pipe.
    #[arg(long, value_name = "PATH")]
    pub(crate) v1: Option<PathBuf>,
    /// File of onnxruntime to try, beside the one that this installation has; repeatable. The newest that can be loaded is used. The daemon
    /// names those of its clients.
    #[arg(long, value_name = "PATH")]
    pub(crate) library: Vec<PathBuf>,
    /// Unload a model after this time without requests; 0 for never.
    #[arg(long, default_value = "10min", value_name = TIME, value_parser = time_from(Duration::ZERO, YEAR, "of at most 365d"))]
    pub(crate) model_ttl: Duration,
    /// Compute the embedding of each text of a request again, also of one that was embedded before.
    #[arg(long)]
    pub(crate) no_result_cache: bool,
}

fn state(text: &str) -> Result<TaskState, String> {
    let all = [TaskState::Pending, TaskState::Running, TaskState::Completed, TaskState::Failed, TaskState::Cancelled];
    let found = all.into_iter().find(|state| state.name() == text);
    found.ok_or_else(|| format!("{text:?} is not one of {}", all.map(TaskState::name).join(", ")))
}
