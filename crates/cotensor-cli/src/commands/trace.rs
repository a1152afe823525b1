//! `trace`: records the operations of a PyTorch script.

use crate::args::TraceArgs;
use crate::launch::{Launch, Program};
use cotensor::core::{Error, ErrorKind, Result};
use std::path::PathBuf;
use std::process::Command;

/// The module of the Python package that records.
const RECORDER: &str = "cotensor.tensorref";

pub(crate) fn trace(args: &TraceArgs, own: &Program) -> Result<()> {
    let python = match (&args.python, &own.launch) {
        (Some(python), _) => python.clone(),
        (None, Launch::Command(python, _)) => python.clone(),
        (None, Launch::ThisProgram) => PathBuf::from("python3"),
    };
    let mut command = Command::new(&python);
    command.args(["-m", RECORDER, "--output"]).arg(&args.output);
    command.arg(format!("--speedup={}", args.speedup)).args(args.host_times.then_some("--host-times"));
    command.arg(&args.script).args(&args.arguments);
    let status = command.status().map_err(|error| Error::io("cannot run the interpreter", &error).in_file(&python))?;
    if status.success() {
        return Ok(());
    }
    let text = format!("{} failed ({status}); it needs the Python packages cotensor and torch", args.script.display());
    Err(Error::new(ErrorKind::Engine, text))
}
