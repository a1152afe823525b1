//! The report of a scan.

use super::gpu::GpuScan;
use super::tally::{Holding, Total};
use serde::Serialize;

/// The result of a scan. Byte counts exclude pages of zeros, unless a field says otherwise.
#[derive(Clone, Debug, Serialize)]
pub struct Scan {
    /// One of so many contents was sampled. Above 1, the figures are estimates.
    pub sample: u32,
    /// Whether all requested memory was read.
    pub complete: bool,
    /// Totals of all processes.
    pub total: Total,
    /// The processes, most duplicates first.
    pub processes: Vec<ProcessScan>,
    /// Mappings with duplicates, most first.
    pub ranges: Vec<RangeScan>,
    /// Pairs of processes with equal contents, most first.
    pub pairs: Vec<PairScan>,
    /// Memory that was not read, with the reason.
    pub unread: Vec<Unread>,
    /// Remarks on the figures.
    pub notes: Vec<String>,
    /// The memory of GPUs. Their duplicates are not searched.
    pub gpus: Vec<GpuScan>,
    /// The lines of code with which programs would share their duplicates, most duplicates first.
    pub advice: Vec<Advice>,
}

/// One process.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessScan {
    /// Process id.
    pub pid: u32,
    /// Its command line, shortened.
    pub command: String,
    /// Resident bytes of the scanned mappings, including zeros.
    pub resident_bytes: u64,
    /// Bytes of pages of zeros.
    pub zero_bytes: u64,
    /// Bytes that are swapped out and were not read.
    pub swapped_bytes: u64,
    /// Byte counts of the process's pages.
    #[serde(flatten)]
    pub holding: Holding,
}

/// All mappings of one name in one process.
#[derive(Clone, Debug, Serialize)]
pub struct RangeScan {
    /// Process id.
    pub pid: u32,
    /// Path of the mapped file, or the kernel's name of the mapping.
    pub name: String,
    /// Bytes of pages whose content another physical page has too.
    pub duplicate_bytes: u64,
}

/// A pair of processes.
#[derive(Clone, Debug, Serialize)]
pub struct PairScan {
    /// Process ids.
    pub pids: (u32, u32),
    /// Bytes that both processes hold in separate physical pages.
    pub duplicate_bytes: u64,
}

/// Memory that was not read.
#[derive(Clone, Debug, Serialize)]
pub struct Unread {
    /// Process id; `None` for several processes.
    pub pid: Option<u32>,
    /// Size in bytes, if known.
    pub bytes: Option<u64>,
    /// The reason.
    pub reason: String,
}

/// How a program shares its duplicates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// The processes of the program.
    pub pids: Vec<u32>,
    /// Its command line, shortened.
    pub command: String,
    /// The library that holds the data.
    pub library: Library,
    /// The model's folder or name, if a mapped file shows it.
    pub model: Option<String>,
    /// The sum of the processes' duplicate bytes.
    pub duplicate_bytes: u64,
    /// Two lines of Python.
    pub code: [String; 2],
}

/// A library that holds tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Library {
    /// PyTorch with Hugging Face transformers.
    Transformers,
    /// PyTorch.
    Torch,
    /// onnxruntime in Python.
    Onnxruntime,
    /// numpy.
    Numpy,
}
