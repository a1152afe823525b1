//! The commands, one file each.

mod cache;
mod call;
mod dashboard;
mod demo;
mod doctor;
mod env;
mod explain;
mod files;
mod models;
mod run;
mod scan;
mod serve;
mod serve_models;
mod tasks;
mod tensors;
mod top;

pub(crate) use cache::cache;
pub(crate) use call::call;
pub(crate) use dashboard::{dashboard, token};
pub(crate) use demo::{demo, demo_worker};
pub(crate) use doctor::doctor;
pub(crate) use env::env;
pub(crate) use explain::explain;
pub(crate) use files::{get, put};
pub(crate) use models::models;
pub(crate) use run::run;
pub(crate) use scan::scan;
pub(crate) use serve::serve;
pub(crate) use serve_models::serve_models;
pub(crate) use tasks::tasks;
pub(crate) use tensors::{ls, rm, stat, who};
pub(crate) use top::top;

use crate::args::{Cli, Client, Common};
use crate::output::{Steps, printable, printable_json};
use crate::watchdog::{self, Watchdog};
use clap::CommandFactory;
use cotensor::Pipeline;
use cotensor::core::{Error, ErrorKind, Result};
use cotensor::model::model::Model;
use cotensor::{LocalOptions, Runtime, SharingConfig, memory};
use cotensor_client::ClientStore;
use std::collections::{BTreeSet, HashMap};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn cache_folder(common: &Common) -> Result<PathBuf> {
    match &common.cache {
        Some(folder) => Ok(folder.clone()),
        None => memory::PackCache::default_dir(),
    }
}

fn runtime(common: &Common, sharing: SharingConfig) -> Result<Arc<Runtime>> {
    LocalOptions {
        cache: Some(cache_folder(common)?),
        max_memory_bytes: budget_bytes(common)?,
        threads: common.threads.map(usize::from),
        sharing,
    }
    .runtime()
}

fn budget_bytes(common: &Common) -> Result<Option<u64>> {
    common.max_memory.map(|mib| mib_to_bytes(mib, "--max-memory")).transpose()
}

fn mib_to_bytes(mib: u64, argument: &str) -> Result<u64> {
    let bytes = mib.checked_mul(1 << 20).filter(|&bytes| bytes > 0);
    bytes.ok_or_else(|| Error::invalid(format!("{mib} MiB cannot be a budget")).in_field(argument))
}

/// Connects to the daemon as a client called `name`. Reports on standard error when the daemon does not answer.
fn connect(client: &Client, name: &str) -> Result<Arc<ClientStore>> {
    let watchdog = watch(client);
    let store = ClientStore::connect(client.socket.as_deref(), name)?;
    watchdog.keep();
    Ok(store)
}

fn watch(client: &Client) -> Watchdog {
    watchdog::start(client.socket.clone().unwrap_or_else(cotensor_client::default_socket))
}

/// Adds the pipeline's file to an `Invalid` error.
fn in_pipeline(error: Error, file: &Path) -> Error {
    if error.kind() == ErrorKind::Invalid { error.in_file(file) } else { error }
}

/// Opens each model folder of `pipeline`, relative to `base`, once, so that all users of a folder run the same files even while
/// they are written. The keys are the folder names in the pipeline.
fn open_models(pipeline: &Pipeline, base: &Path, runtime: &Arc<Runtime>) -> Result<HashMap<String, Arc<Model>>> {
    let mut models = HashMap::new();
    for user in &pipeline.users {
        if !models.contains_key(&user.model) {
            models.insert(user.model.clone(), runtime.open(&base.join(&user.model))?);
        }
    }
    Ok(models)
}

/// Shows progress over the stages that `pipeline` loads, and over `more` steps of the caller.
fn progress(pipeline: &Pipeline, models: &HashMap<String, Arc<Model>>, runtime: &Runtime, more: usize) -> Arc<Steps> {
    let mut stages = BTreeSet::new();
    for user in &pipeline.users {
        // An unknown task is reported when it is run.
        let Some(model) = models.get(&user.model) else { continue };
        let Ok(task) = model.family().task(&user.task) else { continue };
        let head = task.head.then(|| user.head.as_deref().unwrap_or("head"));
        let roles = task.stages.iter().map(String::as_str).chain(head);
        stages.extend(roles.map(|role| (model.folder().to_path_buf(), role.to_owned())));
    }
    let steps = Arc::new(Steps::expecting((stages.len() + more) as u64));
    let progress = Arc::clone(&steps);
    runtime.observe_loads(move |role, model| progress.next(&format!("loading {role} of {model}")));
    steps
}

/// An error of a file that the user named. Missing permissions are `Invalid`: the user can correct them.
fn of_file(what: &str, error: &std::io::Error, file: &Path) -> Error {
    use std::io::ErrorKind::{AlreadyExists, PermissionDenied, ReadOnlyFilesystem};
    let found = Error::io(what, error).in_file(file);
    match error.kind() {
        AlreadyExists | PermissionDenied | ReadOnlyFilesystem => Error::invalid(found.message()).in_file(file),
        _ => found,
    }
}

/// Writes text to standard output, with control characters escaped.
fn print(text: &str) -> Result<()> {
    write_out(&printable(text))
}

/// Writes to standard output; a closed pipe is no error.
fn write_out(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Error::io("cannot write", &error)),
        _ => Ok(()),
    }
}

/// Prints the completion script of a shell.
pub(crate) fn completions(shell: clap_complete::Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "cotensor", &mut script);
    write_out(&String::from_utf8_lossy(&script))
}

fn print_json(value: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Error::invalid(error.to_string()))?;
    write_out(&format!("{}\n", printable_json(&text)))
}
