//! The options of the demo and of its workers.

use cotensor::core::{Error, Result};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// Options of the demo.
#[derive(Clone, Debug)]
pub struct DemoOptions {
    /// The executable whose `demo-worker` command runs a scenario.
    pub program: PathBuf,
    /// Arguments of the executable before that command, for an interpreter.
    pub program_arguments: Vec<OsString>,
    /// Scenario names, in order.
    pub scenarios: Vec<String>,
    /// Folder of seeded models and of the weight cache.
    pub cache: PathBuf,
    /// Folder of real checkpoints, one folder per model name; other models get seeded weights.
    pub models: Option<PathBuf>,
    /// The engine of every run: a name, or `auto` for the fastest of this machine.
    pub engine: String,
    /// Number of engine threads in every run.
    pub threads: usize,
    /// Number of timed runs of each variant; the median counts.
    pub repeats: usize,
    /// Number of processes of the scenario `processes`.
    pub processes: usize,
    /// Memory budget of the store, in bytes.
    pub max_memory_bytes: Option<u64>,
    /// Set to nonzero to stop the demo: it removes its workers and folders and returns an error.
    pub stop: Arc<AtomicUsize>,
}

/// The variants: how the users get their models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Every user opens its own copy, read into memory as the engine does by default.
    Without,
    /// Every user opens its own copy, with weights mapped by the engine.
    Mapped,
    /// One program opens one copy for all users, with mapped weights, and reuses results.
    ByHand,
    /// Through Cotensor.
    With,
    /// No variant: fits the adapters of the scenario.
    Fit,
}

impl Mode {
    /// All variants, in the order of the report.
    pub const ALL: [Mode; 4] = [Mode::Without, Mode::Mapped, Mode::ByHand, Mode::With];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Without => "without",
            Mode::Mapped => "mapped",
            Mode::ByHand => "by_hand",
            Mode::With => "with",
            Mode::Fit => "fit",
        }
    }
}

impl FromStr for Mode {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let mode = Mode::ALL.into_iter().chain([Mode::Fit]).find(|mode| mode.name() == name);
        mode.ok_or_else(|| Error::invalid(format!("unknown mode {name:?}")).in_field("--mode"))
    }
}

/// Options of a worker.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// Name of the scenario.
    pub scenario: String,
    /// The variant.
    pub mode: Mode,
    /// Folders of the models, each with the name of its model.
    pub models: Vec<PathBuf>,
    /// Files of the adapters of the users that have one, in order; read by [`Mode::With`].
    pub adapters: Vec<PathBuf>,
    /// Folder of the weight cache.
    pub cache: PathBuf,
    /// Name of the engine; equal for all variants.
    pub engine: String,
    /// Number of engine threads; equal for all variants.
    pub threads: usize,
    /// Memory budget of the store, in bytes.
    pub max_memory_bytes: Option<u64>,
    /// Folder in which to record the runs of [`Mode::ByHand`], for another engine.
    pub record: Option<PathBuf>,
}

impl WorkerOptions {
    /// The folder of a model.
    pub(crate) fn folder(&self, model: &str) -> Result<&Path> {
        let found = self.models.iter().find(|folder| folder.file_name().is_some_and(|name| name == model));
        found.map(PathBuf::as_path).ok_or_else(|| Error::invalid(format!("no folder of {model}")).in_field("--model"))
    }
}
