//! Arguments of the commands for placement.

use super::units::{SIZE, TIME, rate, size, time_from};
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Compare strategies for a program whose tensors do not fit on the device.
///
/// Simulates the recorded operations of a program under each strategy: flow (plans ahead), genoa (copies tensors before
/// each operation and frees them after it), lru, pinned (keeps the first tensors), and cpu (no device) if every operation
/// has a time there. Prints the time, the copied bytes and the stall of a period, beside a bound that no plan can beat.
#[derive(Args)]
#[command(after_help = "Example:\n  cotensor plan trace.json --budget 4GiB --bandwidth 12GB/s --report plan.html")]
pub(crate) struct PlanArgs {
    /// JSON file with the tensors and the operations of one period of the program; docs/labs/placement.md describes it.
    pub(crate) trace: PathBuf,
    /// Memory of the device for tensors and workspace, such as 4GiB or 4GB. Repeatable: several devices divide
    /// the operations.
    #[arg(long, required = true, value_name = SIZE, value_parser = size)]
    pub(crate) budget: Vec<u64>,
    /// Speed of copies between host and device, such as 12GB/s, in each direction. Given once, it is that of all devices.
    #[arg(long, required = true, value_name = "RATE", value_parser = rate)]
    pub(crate) bandwidth: Vec<u64>,
    /// Time until a copy starts, such as 20us.
    #[arg(long, default_value = "0s", value_name = TIME, value_parser = time_from(Duration::ZERO, Duration::from_secs(1), "of at most 1s, such as 20us"))]
    pub(crate) latency: Duration,
    /// Write a page with the table and a chart of the used memory.
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,
    /// Print one JSON object on standard output and nothing else.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Record the operations of a PyTorch script on its parameters, for `cotensor plan`.
///
/// Runs the script with the Python package cotensor, and writes the last period that its operations repeat: for example one
/// pass over a model, or one generated token. Times are those of the device that the script uses; those of a script on the CPU are
/// also the times on the host.
#[derive(Args)]
pub(crate) struct TraceArgs {
    /// Python script that runs a model at least twice.
    pub(crate) script: PathBuf,
    /// Arguments of the script.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) arguments: Vec<OsString>,
    /// File for the trace.
    #[arg(short, long, value_name = "TRACE.json")]
    pub(crate) output: PathBuf,
    /// For a script on the CPU: the device is this many times as fast; measured times become those of the CPU.
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR", value_parser = factor)]
    pub(crate) speedup: f64,
    /// For a script on an accelerator: run each operation on the host, too, and record its time there.
    #[arg(long)]
    pub(crate) host_times: bool,
    /// Python interpreter with the packages cotensor and torch; by default that of this command, else python3.
    #[arg(long, value_name = "PYTHON")]
    pub(crate) python: Option<PathBuf>,
}

fn factor(text: &str) -> Result<f64, String> {
    let factor = text.parse::<f64>().ok().filter(|factor| (1e-6..=1e6).contains(factor));
    factor.ok_or_else(|| "expected a number from 0.000001 to 1000000".to_owned())
}
