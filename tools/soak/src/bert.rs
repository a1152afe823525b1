//! Memory of BERT-base in several processes: with weights mapped through the daemon, and with separate copies.

use crate::daemon::{Machine, io, this_program};
use cotensor_client::ClientStore;
use cotensor_core::{Error, Result};
use cotensor_memory::{PackCache, process};
use cotensor_model::Runtime;
use cotensor_model::engine::{FileMode, RtenEngine};
use cotensor_model::model::{Model, StageSource};
use cotensor_model::tensor::Array;
use cotensor_model::tensor::Value;
use cotensor_store::{EmbeddedStore, Store};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
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
    index: i32,
    /// Socket of the daemon; without it, the process loads a separate copy.
    #[arg(long)]
    socket: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Outcome {
    one: Memory,
    many: Memory,
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

/// Memory of the daemon, its supervisor and the model processes, in bytes.
#[derive(Debug, Serialize)]
struct Memory {
    /// Memory of each model process.
    clients: Vec<u64>,
    server: u64,
    supervisor: u64,
    /// Pages of the daemon's segments that no process maps.
    unmapped: u64,
    total: u64,
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
    let running = run_processes(folder, processes, None)?;
    let total = running.iter().map(|running| process::pss_bytes(running.0.id())).sum::<Result<u64>>()?;
    eprintln!("{processes} processes with separate copies: {} MiB", total >> 20);
    Ok(total)
}

/// Starts the processes, and waits until all have run the model.
fn run_processes(folder: &Path, processes: usize, socket: Option<&Path>) -> Result<Vec<Running>> {
    let mut running = (0..processes).map(|index| Running::start(folder, index, socket)).collect::<Result<Vec<_>>>()?;
    running.iter_mut().try_for_each(Running::wait_until_ready)?;
    Ok(running)
}

/// A process that has run the model and keeps it open.
struct Running(Child);

impl Running {
    fn start(folder: &Path, index: usize, socket: Option<&Path>) -> Result<Self> {
        let mut command = this_program("model")?;
        command.arg(folder).arg(index.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some(socket) = socket {
            command.arg("--socket").arg(socket);
        }
        Ok(Self(command.spawn().map_err(io("starting a process"))?))
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let out = self.0.stdout.take().ok_or_else(|| Error::invalid("no output"))?;
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line).map_err(io("reading from a process"))?;
        if line == "ready\n" { Ok(()) } else { Err(Error::corrupt("a process could not run the model")) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn measure(folder: &Path, processes: usize) -> Result<Memory> {
    let machine = Machine::start(u64::MAX)?;
    let running = run_processes(folder, processes, Some(&machine.socket))?;
    let [server, supervisor] = machine.processes()?;
    let pids: Vec<u32> = running.iter().map(|running| running.0.id()).collect();
    let clients = pids.iter().map(|&pid| process::pss_bytes(pid)).collect::<Result<Vec<_>>>()?;
    let mut mapped = BTreeMap::new();
    for &pid in pids.iter().chain(&[server, supervisor]) {
        for (inode, bytes) in mapped_segments(pid)? {
            *mapped.entry(inode).or_default() += bytes;
        }
    }
    let unmapped = held_segments(server)?
        .into_iter()
        .map(|(inode, bytes)| bytes.saturating_sub(mapped.get(&inode).copied().unwrap_or(0)));
    let unmapped = unmapped.sum();
    let (server, supervisor) = (process::pss_bytes(server)?, process::pss_bytes(supervisor)?);
    let total = clients.iter().sum::<u64>() + server + supervisor + unmapped;
    eprintln!("{processes} processes: {} MiB, {} of it in unmapped segments", total >> 20, unmapped >> 20);
    Ok(Memory { clients, server, supervisor, unmapped, total })
}

/// The proportional set size in bytes of every memfd mapping of a process, with the inode of the memfd.
fn mapped_segments(pid: u32) -> Result<Vec<(u64, u64)>> {
    Ok(segments_of(&process::range_usage(pid)?))
}

fn segments_of(ranges: &[process::RangeUsage]) -> Vec<(u64, u64)> {
    let memfds = ranges.iter().filter(|usage| usage.range.name.starts_with("/memfd:"));
    memfds.map(|usage| (usage.range.inode, usage.pss_bytes)).collect()
}

/// The pages of every memfd that a process has open, by inode.
fn held_segments(pid: u32) -> Result<BTreeMap<u64, u64>> {
    let folder = std::fs::read_dir(format!("/proc/{pid}/fd")).map_err(io("listing descriptors"))?;
    let mut held = BTreeMap::new();
    for entry in folder.flatten() {
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        if target.to_string_lossy().starts_with("/memfd:")
            && let Ok(about) = std::fs::metadata(entry.path())
        {
            held.insert(about.ino(), about.blocks() * 512);
        }
    }
    Ok(held)
}

/// Opens and runs the model, prints a line, and waits.
///
/// # Errors
/// Errors of running the model.
pub(crate) fn run_model(options: &ModelOptions) -> Result<()> {
    let engine = Arc::new(RtenEngine::new(None));
    let (store, model): (Arc<dyn Store>, Arc<Model>) = match &options.socket {
        Some(socket) => {
            let store: Arc<dyn Store> = ClientStore::connect(Some(socket), &format!("process {}", options.index))?;
            let model = Runtime::new(Arc::clone(&store), engine).open(&options.folder)?;
            (store, model)
        }
        None => {
            let model = Model::open(&options.folder, StageSource::Private(engine.into(), FileMode::Read))?;
            (EmbeddedStore::builder().build(), Arc::new(model))
        }
    };
    let holder = store.holder("bert");
    let stage = model.stage("encoder")?;
    let ids = Value::from(Array::i64([1, 128], (0..128).map(|i| 1000 + i64::from(options.index) * 128 + i).collect())?);
    let (ones, zeros) =
        (Value::from(Array::i64([1, 128], vec![1; 128])?), Value::from(Array::i64([1, 128], vec![0; 128])?));
    let inputs = [("input_ids", &ids), ("attention_mask", &ones), ("token_type_ids", &zeros)];
    let run = stage.run(&inputs, &["last_hidden_state"], &holder)?;
    if !run.computed {
        return Err(Error::corrupt("another process has run this input"));
    }
    println!("ready");
    drop(std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
    drop((run, model));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memfd_mappings_are_found_by_name() {
        let mapped = |inode, name: &str, pss_bytes| process::RangeUsage {
            range: process::MappedRange { inode, name: name.to_owned(), ..process::MappedRange::default() },
            pss_bytes,
            ..process::RangeUsage::default()
        };
        let ranges = [
            mapped(42, "/memfd:cotensor (deleted)", 12),
            mapped(0, "", 100),
            mapped(43, "/lib/c", 7),
            mapped(44, "/memfd:x (deleted)", 3),
        ];
        assert_eq!(segments_of(&ranges), [(42, 12), (44, 3)]);
    }
}
