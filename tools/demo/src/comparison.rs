//! The result of the demo.

use crate::by_hand::Onnxruntime;
use crate::processes::Processes;
use crate::savings::{Avoidable, MemoryParts, TimeParts};
use crate::scenario::Claim;
use crate::worker_report::Fit;
use cotensor::model::pipeline::UserReport;
use serde::Serialize;

/// The result of the demo.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// One entry per scenario.
    pub scenarios: Vec<Entry>,
}

/// The result of a scenario.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Entry {
    /// Of several users in one process.
    Users(Box<Scenario>),
    /// Of several processes of one model.
    Processes(Box<Processes>),
}

/// Memory and time of one variant.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cost {
    /// Peak memory in bytes.
    pub memory_bytes: u64,
    /// Wall time in milliseconds, median of several processes.
    pub time_ms: f64,
}

/// A stage of which the first part was loaded and run for another model.
#[derive(Clone, Debug, Serialize)]
pub struct SharedStage {
    /// The user.
    pub user: String,
    /// The role.
    pub role: String,
    /// The bytes of the weights of the stage.
    pub weight_bytes: u64,
    /// The share of them that is neither loaded nor held again, in percent.
    pub weights_saved_percent: f64,
    /// Milliseconds for running the stage without sharing.
    pub run_ms: f64,
    /// The share of them that is saved, in percent.
    pub run_saved_percent: f64,
}

/// The result of one scenario.
#[derive(Clone, Debug, Serialize)]
pub struct Scenario {
    /// Name of the scenario.
    pub name: String,
    /// The families of its models.
    pub models: Vec<String>,
    /// The names of its models.
    pub checkpoints: Vec<String>,
    /// The variant over which savings are counted: `without`; `mapped` for users of different models.
    pub baseline: &'static str,
    /// The savings that the first library with this API claims for the scenario.
    pub claim: Option<Claim>,
    /// The arithmetic of a claim that is not reached.
    pub why_short: Option<String>,
    /// The stages of which the first part was loaded and run for another model with equal weights.
    pub shared_stages: Vec<SharedStage>,
    /// The adapters through which users read the encoder of another model.
    pub adapters: Vec<Fit>,
    /// The engine with its version.
    pub engine: String,
    /// Cores, threads and device.
    pub hardware: String,
    /// `seeded` or `checkpoint`.
    pub weights: &'static str,
    /// Every user with its own copy.
    pub without: Cost,
    /// Every user with its own mapping of the weights.
    pub mapped: Cost,
    /// One model by hand: one program, one mapped copy, results reused.
    pub by_hand: Cost,
    /// The same program on onnxruntime with default settings; `None` without onnxruntime.
    pub onnxruntime: Option<Onnxruntime>,
    /// Through Cotensor with a warm weight cache, filled by an earlier run.
    pub with: Cost,
    /// Through Cotensor with an empty weight cache: the first run, which fills the cache. Timed once. `None` for models that
    /// are too large to keep their weights in it.
    pub with_cold: Option<Cost>,
    /// Memory savings over the baseline, in percent.
    pub memory_saved_percent: f64,
    /// Time savings over the baseline, in percent.
    pub time_saved_percent: f64,
    /// Origin of the saved memory; the sum is the whole saving.
    pub memory_saved: MemoryParts,
    /// Origin of the saved time; the sum is the whole saving.
    pub time_saved: TimeParts,
    /// Share of repeated work in the time of `without`, 0 to 1.
    pub avoidable_time_share: f64,
    /// The time of repeated work by kind.
    pub avoidable_time: Avoidable,
    /// Duplicated weight bytes of `without`.
    pub avoidable_weight_bytes: u64,
    /// Time saved divided by avoidable time.
    pub time_efficiency: f64,
    /// Memory saved divided by duplicated weight bytes.
    pub memory_efficiency: f64,
    /// Origin of the savings: `weights`, `computation`.
    pub saved_by: Vec<&'static str>,
    /// Largest difference of any output of any run from the unshared run.
    pub max_abs_diff: f64,
    /// The figures behind the ratios, in sentences.
    pub arithmetic: Vec<String>,
    /// Reports of the users through Cotensor.
    pub answers: Vec<UserReport>,
    /// Memory of the sampled runs: variant, then pairs of seconds and bytes.
    pub timelines: Vec<(&'static str, Vec<(f64, u64)>)>,
    /// Times of the timed runs in milliseconds, by variant.
    pub times_ms: Vec<(&'static str, Vec<f64>)>,
}
