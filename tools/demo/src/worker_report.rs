//! The report of a worker: times, memory and answers of one run.

use cotensor::model::adapter::Quality;
use cotensor::model::pipeline::UserReport;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The report of a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerReport {
    /// Wall time in milliseconds from the start of the program to the last answer, with all copies open. Excludes
    /// hashing for the report ([`UserReport::report_ms`]).
    pub time_ms: f64,
    /// Proportional set size in bytes at the end, with all copies open. It is complete, because the store is embedded
    /// and every segment is mapped.
    pub pss_bytes: u64,
    /// Reports of the users.
    pub users: Vec<UserReport>,
    /// Milliseconds for reading the input file and the model's config, for each user in the same order.
    pub open_ms: Vec<f64>,
    /// The adapters of the scenario; only for [`Mode::Fit`](crate::Mode::Fit).
    #[serde(default)]
    pub fits: Vec<Fit>,
    /// Sizes of the weights; only for [`Mode::With`](crate::Mode::With), which hashes contents.
    pub weights: Option<WeightBytes>,
    /// Stages whose first part another user had run; only for [`Mode::With`](crate::Mode::With).
    #[serde(default)]
    pub continued: Vec<Continued>,
    /// Resident part of the mapped files of models at the end; only for [`Mode::Mapped`](crate::Mode::Mapped).
    pub mapped_resident_bytes: Option<u64>,
}

/// Bytes of weights in a run.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct WeightBytes {
    /// Weights that all users open, counting each copy.
    pub opened_bytes: u64,
    /// Distinct weights.
    pub unique_bytes: u64,
    /// Resident part of the weight cache at the end; unread pages are not resident.
    pub resident_bytes: u64,
}

/// A stage of which the first part was loaded and run for another user.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Continued {
    /// The user.
    pub user: String,
    /// The stage.
    pub role: String,
    /// The bytes of the weights of the stage.
    pub weight_bytes: u64,
    /// The bytes of those of its first part.
    pub shared_weight_bytes: u64,
    /// The role of the first part.
    pub shared_role: String,
}

/// An adapter that a user of a scenario reads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Fit {
    /// The user.
    pub user: String,
    /// The stage that the adapter replaces.
    pub role: String,
    /// The file of the adapter.
    pub file: PathBuf,
    /// The number of samples.
    pub samples: usize,
    /// The error on held-out samples.
    pub quality: Quality,
    /// Milliseconds for fitting, including the runs of both encoders.
    pub fit_ms: f64,
    /// The bytes of the weights of the stage that the adapter replaces.
    pub replaced_weight_bytes: u64,
}
