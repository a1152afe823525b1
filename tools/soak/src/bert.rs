//! Memory of BERT-base in several processes: with weights mapped through the daemon, and with separate copies.

use crate::daemon::{Machine, this_program};
use cotensor_core::Result;
use cotensor_demo::{Fleet, FleetMemory, ModelProcess, Weights};
use cotensor_memory::PackCache;
use cotensor_model::engine::RtenEngine;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(clap::Args, Clone)]
pub(crate) struct Options {
    /// Number of processes that run the model.
    #[arg(long, default_value_t = 4)]
    pub(crate) processes: usize,
    /// Folder of the seeded model, which is generated if missing.
    #[arg(long, env = "COTENSOR_CACHE")]
    pub(crate) cache: Option<PathBuf>,
}

#[derive(clap::Args)]
pub(crate) struct ModelOptions {
    folder: PathBuf,
    /// Index of the process, which selects its input.
    index: usize,
    /// Socket of the daemon; without it, the process loads a separate copy.
    #[arg(long)]
    socket: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Outcome {
    one: FleetMemory,
    many: FleetMemory,
    processes: usize,
    /// Bytes of `processes` processes with separate copies, as the engine loads by default.
    pub(crate) copies_bytes: u64,
    pub(crate) ratio: f64,
}

impl Outcome {
    /// Bytes of all processes together, with the daemon.
    pub(crate) fn shared_bytes(&self) -> u64 {
        self.many.total
    }
}

/// # Errors
/// Errors of generating or running the model.
pub(crate) fn run(options: &Options) -> Result<Outcome> {
    let cache = options.cache.clone().map_or_else(PackCache::default_dir, Ok)?;
    let folder = cotensor_demo::materialize("bert-base", &cache.join("models"), &|_, _| true)?;
    let one = measure(&folder, 1)?;
    let many = measure(&folder, options.processes)?;
    let ratio = many.total as f64 / one.total as f64;
    let copies_bytes = measure_copies(&folder, options.processes)?;
    Ok(Outcome { one, many, processes: options.processes, copies_bytes, ratio })
}

/// Memory of processes with separate copies.
fn measure_copies(folder: &Path, processes: usize) -> Result<u64> {
    let memory = FleetMemory::of(&start(folder, processes, None)?.pids(), None)?;
    eprintln!("{processes} processes with separate copies: {} MiB", memory.total >> 20);
    Ok(memory.total)
}

fn measure(folder: &Path, processes: usize) -> Result<FleetMemory> {
    let machine = Machine::start(u64::MAX)?;
    let fleet = start(folder, processes, Some(&machine.socket))?;
    let memory = FleetMemory::of(&fleet.pids(), Some(machine.processes()?))?;
    eprintln!(
        "{processes} processes: {} MiB, {} of it in unmapped segments",
        memory.total >> 20,
        memory.unmapped >> 20
    );
    Ok(memory)
}

/// Starts the processes, and waits until all have run the model.
fn start(folder: &Path, processes: usize, socket: Option<&Path>) -> Result<Fleet> {
    let command = |index: usize| {
        let mut command = this_program("model")?;
        command.arg(folder).arg(index.to_string());
        socket.map(|socket| command.arg("--socket").arg(socket));
        Ok(command)
    };
    Fleet::start((0..processes).map(command).collect::<Result<_>>()?, &Arc::default())
}

/// Opens and runs the model, and waits.
///
/// # Errors
/// Errors of running the model.
pub(crate) fn run_model(options: ModelOptions) -> Result<()> {
    cotensor_demo::run_model_process(&ModelProcess {
        folder: options.folder,
        index: options.index,
        engine: RtenEngine::NAME.to_owned(),
        threads: None,
        cache: PackCache::default_dir()?,
        weights: options.socket.map_or(Weights::Copy, Weights::Daemon),
    })
}
